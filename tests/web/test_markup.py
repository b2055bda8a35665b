"""What agents write is shown as text and harmless markup, never as theirs to run."""

import re
from html.parser import HTMLParser

import pytest

from turnkeeper.web.markup import FORMATTED_CHARS_MAX, to_html
from turnkeeper.web.render import diff_class
from turnkeeper.web.texts import names, pair

ALLOWED = {
    "a",
    "blockquote",
    "br",
    "code",
    "del",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "strong",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
}

Element = tuple[str, list[tuple[str, str | None]]]


def _elements(html: str) -> list[Element]:
    """Every tag of a page as a browser would see it, with its attributes."""
    found: list[Element] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, attrs))

    Reader().feed(html)
    return found


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '<a href="javascript:alert(1)">x</a>',
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "![x](javascript:alert(1))",
    '![x" onerror="alert(1)](http://e/x.png "t\\" onload=\\"alert(1)")',
    "<http://e/\" onclick='alert(1)>",
    "<style>*{display:none}</style>",
    '<form action="/logout" method=post><button>x</button></form>',
    "<iframe srcdoc='<script>1</script>'>",
    "`<script>`\n\n    <script>alert(1)</script>",
    '[x]: javascript:alert(1)\n\n[x] ```"><script>``` ',
    "<!-- --><script>1</script>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_has_no_effect(text: str) -> None:
    """Nothing that a browser would run or load survives, whatever it was wrapped in."""
    for tag, attributes in _elements(to_html(text)):
        assert tag in ALLOWED
        for name, value in attributes:
            assert name in {"href", "title", "rel", "start", "align"}
            if name == "href":
                assert re.match(r"(https?|mailto):", value or "http:") or ":" not in (value or "")


def test_common_markdown_is_rendered() -> None:
    """Headings, lists, code, tables and links; a link does not tell where it was clicked."""
    shown = to_html(
        "# H\n\n1. a\n2. b\n\n```py\nx<y\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n[l](https://e.org)\n\n~~no~~"
    )
    assert "<h1>H</h1>" in shown
    assert "<ol>" in shown
    assert "x&lt;y" in shown
    assert "<td>1</td>" in shown
    assert 'rel="noopener noreferrer nofollow"' in shown
    assert "<s>no</s>" in shown


def test_a_picture_becomes_a_link() -> None:
    """A remote picture would tell its server who reads."""
    assert '<a href="https://e.org/x.png"' in to_html("![chart](https://e.org/x.png)")


def test_a_very_long_text_is_shown_as_it_is() -> None:
    """Formatting takes time that grows with length, so it has a bound."""
    shown = to_html("*" * (FORMATTED_CHARS_MAX + 1) + "<b>")
    assert shown.startswith('<pre class="long">')
    assert "&lt;b&gt;" in shown


@pytest.mark.parametrize(
    "text", ["\x00", "\ufffd\ud83d\ude00", "a" * 1000, "[" * 5000, "> " * 2000, "*a_ " * 5000, "`" * 3000]
)
def test_odd_text_is_rendered_in_bounded_time(text: str) -> None:
    """Case: F10."""
    assert isinstance(to_html(text.encode("utf-8", "replace").decode()), str)


def test_each_text_of_the_pages_has_both_languages() -> None:
    """English and Chinese, none empty."""
    for name in names():
        english, chinese = pair(name)
        assert english.strip(), name
        assert chinese.strip(), name


def test_lines_of_a_diff_are_told_apart() -> None:
    """Headers are neither additions nor removals."""
    assert [diff_class(line) for line in ("@@ -1 +1 @@", "+a", "-a", " a", "+++ b/x", "--- a/x")] == [
        "hunk",
        "add",
        "del",
        "same",
        "same",
        "same",
    ]
