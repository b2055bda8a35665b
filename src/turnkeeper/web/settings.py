"""What the pages are told at their start."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WebSettings:
    """`cookie_secure`: set where the pages are reached over https, so that the cookie never travels in the clear."""

    cookie_secure: bool = False
    session_lifetime_s: float = 30 * 24 * 3600.0
    form_bytes_max: int = 4 * 1024 * 1024
    turns_per_page: int = 20
