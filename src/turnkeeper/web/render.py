"""Templates, headers and files of the pages. Everything is served from here: a page loads nothing from outside.

The policy forbids inline script and style, frames, plug-ins and other origins. Templates escape by default; the only text
that is marked as HTML is what `markup` cleaned.
"""

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, cast

import jinja2
from markupsafe import Markup
from starlette.responses import Response

from turnkeeper import __version__
from turnkeeper.web.markup import to_html
from turnkeeper.web.texts import show_time

SECURITY_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`: under it a browser says `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ROOT: Final = Path(str(files("turnkeeper.web")))


def diff_class(line: str) -> str:
    """How a line of a unified diff is shown."""
    if line.startswith("@@"):
        return "hunk"
    if line.startswith("+") and not line.startswith("+++"):
        return "add"
    if line.startswith("-") and not line.startswith("---"):
        return "del"
    return "same"


def rich(text: str) -> Markup:
    """An agent's text as safe HTML."""
    return Markup(to_html(text))  # noqa: S704 - cleaned by an allow-list


class StaticFiles:
    """The few files of the pages, read once. A name that is not among them does not exist, whatever it looks like."""

    def __init__(self) -> None:
        self._files = {
            path.name: (path.read_bytes(), _MEDIA_TYPES[path.suffix])
            for path in sorted((_ROOT / "static").iterdir())
            if path.suffix in _MEDIA_TYPES
        }
        digest = hashlib.sha256(b"".join(data for data, _ in self._files.values())).hexdigest()
        self.version = f"{__version__}-{digest[:12]}"

    def response(self, name: str, version: str | None) -> Response | None:
        """The file, to be kept by the browser for ever where it was asked for by its version."""
        found = self._files.get(name)
        if found is None:
            return None
        keep = "public, max-age=31536000, immutable" if version == self.version else "no-cache"
        return Response(found[0], media_type=found[1], headers={"cache-control": keep, **SECURITY_HEADERS})


class Renderer:
    """Renders a template with what every page needs."""

    def __init__(self, version: str) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_ROOT / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        common: dict[str, Any] = {
            "version": version, "show_time": show_time, "diff_class": diff_class, "rich": rich, "problem": None, "owner": None,
        }  # fmt: skip
        cast("dict[str, Any]", self._environment.globals).update(common)

    def html(self, template: str, values: dict[str, Any]) -> str:
        """The page's text. Call it in a thread where texts of agents are rendered."""
        return self._environment.get_template(template).render(**values)


def page_response(html: str, status: int = 200) -> Response:
    """A page: never stored by caches, and under the policy above."""
    return Response(
        html, status, {"cache-control": "no-store", **SECURITY_HEADERS}, media_type="text/html; charset=utf-8"
    )
