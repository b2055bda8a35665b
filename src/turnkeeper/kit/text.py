"""Hygiene of text and bytes that others wrote (F10).

PostgreSQL refuses NUL in text, UTF-8 has no lone surrogates, and an agent may send both. Whatever cannot be stored is
replaced by U+FFFD, which marks the place; valid text is never changed.
"""

import codecs
import re
from typing import Final, cast

REPLACEMENT: Final = "\ufffd"
TOO_DEEP: Final = "… [cut: too deep]"
JSON_DEPTH_MAX: Final = 200

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` with NUL and lone surrogates replaced by U+FFFD."""
    return _UNSTORABLE.sub(REPLACEMENT, text)


def decode(data: bytes | bytearray) -> str:
    """UTF-8 with invalid sequences and NUL replaced by U+FFFD."""
    return clean(data.decode("utf-8", "replace"))


def size(text: str) -> int:
    """How many bytes of UTF-8 `text` takes once it is clean."""
    return len(clean(text).encode("utf-8"))


def cut(text: str, max_bytes: int) -> tuple[str, int | None]:
    """Clean `text` and keep at most `max_bytes` of its UTF-8, marker included.

    Returns the text and None, or, where something was cut, the text ending in `… [cut: N bytes]` and N, the original
    size. A character is never split. `max_bytes` must leave room for the marker.
    """
    text = clean(text)
    data = text.encode("utf-8")
    if len(data) <= max_bytes:
        return text, None
    marker = f"… [cut: {len(data)} bytes]"
    room = max_bytes - len(marker.encode("utf-8"))
    if room < 0:
        raise ValueError(f"no room for the marker in {max_bytes} bytes")
    return data[:room].decode("utf-8", "ignore") + marker, len(data)


def cut_bytes(data: bytes, max_bytes: int) -> tuple[str, int | None]:
    """`decode`, then `cut`; the size in the marker and the result is that of `data` as it came."""
    text = decode(data)
    if len(data) <= max_bytes and len(text.encode("utf-8")) <= max_bytes:
        return text, None
    marker = f"… [cut: {len(data)} bytes]"
    room = max_bytes - len(marker.encode("utf-8"))
    if room < 0:
        raise ValueError(f"no room for the marker in {max_bytes} bytes")
    return text.encode("utf-8")[:room].decode("utf-8", "ignore") + marker, len(data)


def tail(data: bytes, max_bytes: int) -> str:
    """The last `max_bytes` of `data` as text, begun at a whole character."""
    part = data[-max_bytes:] if max_bytes > 0 else b""
    start = 0
    if len(part) < len(data):
        while start < min(3, len(part)) and part[start] & 0xC0 == 0x80:
            start += 1
    return decode(part[start:])


def clean_json(value: object, _depth: int = 0) -> object:
    """A JSON value in which every string and key is clean and every number is one that JSON has.

    NaN and the infinities, which Python's parser accepts and PostgreSQL refuses, become strings. Keys that become equal
    are kept apart by further U+FFFD. What lies deeper than 200 levels becomes a marker.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict | list | tuple) and _depth >= JSON_DEPTH_MAX:
        return TOO_DEEP
    if isinstance(value, dict):
        result: dict[str, object] = {}
        for key, item in cast("dict[object, object]", value).items():
            name = clean(str(key))
            while name in result:
                name += REPLACEMENT
            result[name] = clean_json(item, _depth + 1)
        return result
    if isinstance(value, list | tuple):
        return [clean_json(item, _depth + 1) for item in cast("list[object]", value)]
    return value


class IncrementalDecoder:
    """Bytes of UTF-8 that arrive in pieces, cut anywhere, as clean text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """The text that is complete so far; with `final` also what is left over, replaced where it is broken."""
        return clean(self._decoder.decode(data, final))


class TextJoiner:
    """Text that arrives in pieces whose cut may lie between the two halves of a surrogate pair.

    JSON escapes allow that: one chunk ends in `\\ud83d`, the next begins with `\\ude00`. A high half at the end of a
    piece is kept until the next one.
    """

    def __init__(self) -> None:
        self._kept = ""

    def feed(self, text: str) -> str:
        """The text that is complete so far, clean."""
        text = self._kept + text
        self._kept = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._kept = text[:-1], text[-1]
        return clean(join_surrogates(text))

    def flush(self) -> str:
        """What is left over, replaced."""
        kept, self._kept = self._kept, ""
        return clean(kept)


def join_surrogates(text: str) -> str:
    """Make one character of each high surrogate that a low one follows; lone ones stay."""
    if _SURROGATE.search(text) is None:  # almost always; the way through UTF-16 takes several times the text's memory
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
