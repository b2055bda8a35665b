"""What the HTTP APIs are told at their start."""

from dataclasses import dataclass

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""What a browser on this machine calls a server that listens on loopback."""


@dataclass(frozen=True)
class ApiSettings:
    """Bounds in bytes, counts and seconds.

    `allowed_hosts`: names (without port) under which the owner API and the pages are reached. A page of another site whose
    name was made to point here (DNS rebinding) says another name, and is refused. None: any name, for a server behind a
    proxy that checks.
    """

    allowed_hosts: frozenset[str] | None = LOOPBACK_HOSTS
    body_bytes_max: int = 1024 * 1024
    worker_body_bytes_max: int = 40 * 1024 * 1024
    stream_readers_max: int = 2000
    stream_recheck_s: float = 30.0
    """How often an open stream looks whether its key or session still opens anything. Every request looks at once."""
