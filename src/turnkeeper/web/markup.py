"""What an agent wrote, as HTML that is safe to show: Markdown without raw HTML, cleaned again by an allow-list.

Everything here is hostile input. markdown-it escapes HTML instead of passing it on; nh3 then keeps the tags below and
nothing else, so that a mistake in one of the two is not yet a hole. Pictures become links: the page's policy would block
a remote picture, and fetching one would tell its server who reads.
"""

import html
from functools import lru_cache
from typing import Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

FORMATTED_CHARS_MAX: Final = 100_000
"""Longer text is shown as it is: formatting takes time that grows with length."""

_TAGS: Final = {
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES: Final = {"a": {"href", "title"}, "ol": {"start"}, "td": {"align"}, "th": {"align"}}


def _picture_as_link(
    _self: RendererHTML, tokens: list[Token], index: int, _options: OptionsDict, _env: dict[str, object]
) -> str:
    token = tokens[index]
    target = html.escape(str(token.attrs.get("src", "")), quote=True)
    label = html.escape(token.content or str(token.attrs.get("src", "")))
    return f'<a href="{target}">{label}</a>'


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True})
    parser.enable(["table", "strikethrough"])
    parser.add_render_rule("image", _picture_as_link)
    return parser


_PARSER: Final = _parser()


@lru_cache(maxsize=256)
def to_html(text: str) -> str:
    """The text as safe HTML. Takes up to some 0.2 s for the longest: call it outside the event loop."""
    if len(text) > FORMATTED_CHARS_MAX:
        return f'<pre class="long">{html.escape(text)}</pre>'
    return nh3.clean(
        _PARSER.render(text),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )
