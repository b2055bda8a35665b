"""Forms of the pages: bounded, plain (never multipart), and only from our own pages.

A post must carry the CSRF token of its session, which is derived from the session's secret: a page elsewhere makes a
browser send the cookie, but never knows it. Beside that the browser's own word counts where it gives one (`Origin`,
`Sec-Fetch-Site`).
"""

import base64
import hashlib
import hmac
import re
from urllib.parse import parse_qsl

from starlette.requests import Request

from turnkeeper.kit.ids import constant_time_equal

FIELDS_MAX = 20
_LOCAL_PATH = re.compile(r"/(?:[A-Za-z0-9_-][A-Za-z0-9/_-]*)?(?:\?[A-Za-z0-9=&._-]*)?")


class FormRefused(Exception):  # noqa: N818 - what it carries is the name
    """The post is not one of our pages', or too large. `too_large` tells the two apart."""

    def __init__(self, *, too_large: bool = False) -> None:
        super().__init__()
        self.too_large = too_large


def csrf_token(session: str) -> str:
    """The token of a session's forms."""
    mac = hmac.new(session.encode(), b"turnkeeper form", hashlib.sha256).digest()
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")


async def read_form(request: Request, session: str, bytes_max: int) -> dict[str, str]:
    """The fields of a post. `FormRefused` where it is not ours."""
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise FormRefused
    origin = request.headers.get("origin")
    # With either scheme: behind a proxy that ends TLS the browser says https, and we are asked by http.
    host = request.headers.get("host", "")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        raise FormRefused
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/x-www-form-urlencoded":
        raise FormRefused
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            raise FormRefused(too_large=True)
    try:
        pairs = parse_qsl(body.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise FormRefused from None
    fields = dict(pairs)
    if not constant_time_equal(fields.get("csrf", ""), csrf_token(session)):
        raise FormRefused
    # A form says a line break as CR LF; texts have LF.
    return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


def local_path(text: str) -> str:
    """`text` where it is a path of ours, else the front page: nobody is sent elsewhere."""
    return text if _LOCAL_PATH.fullmatch(text) and len(text) < 500 else "/conversations"
