"""A line of megabytes, read without ever having it in memory twice (F11).

Parsed as it stands, such a line is there as bytes, as text and as the parsed string, and a single emoji makes each of the
last two four times as large. Here its long strings are taken out as ranges of the bytes; the rest, which is short, is
parsed; and what the ranges hold is decoded piece by piece.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from turnkeeper.kit import text as hygiene
from turnkeeper.sandboxd.updates import as_object

LARGE_LINE_BYTES: Final = 512 * 1024
LONG_STRING_BYTES: Final = 96 * 1024
PIECE_BYTES: Final = 48 * 1024
_KEPT_BYTES: Final = 64 * 1024
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_ESCAPE_BYTES: Final = 6


@dataclass(frozen=True)
class _Range:
    """The bytes of one string, without its quotes."""

    start: int
    end: int


def read_large(line: bytearray) -> Iterator[dict[str, Any]]:
    """The messages that a large line stands for; ValueError or RecursionError where it is no JSON object.

    A chunk of text becomes as many chunks as it needs, so that nothing of it is lost. Any other string above the limit is
    cut with a marker: it would be cut as an event in any case.
    """
    ranges = [
        _Range(match.start() + 1, match.end() - 1)
        for match in _STRING.finditer(line)
        if match.end() - match.start() > LONG_STRING_BYTES
    ]
    prefix = _unused_word(line)
    message = json.loads(hygiene.decode(_skeleton(line, ranges, prefix)), strict=False)
    if not isinstance(message, dict):
        raise ValueError("not an object")  # noqa: TRY004 - to the caller it is as bad as no JSON
    places = {f"{prefix}{index}": where for index, where in enumerate(ranges)}
    fields = cast("dict[str, Any]", message)
    content = as_object(as_object(as_object(fields.get("params")).get("update")).get("content"))
    where = places.get(content.get("text", "")) if isinstance(content.get("text"), str) else None
    if where is not None and fields.get("method") == "session/update":
        return _chunks(fields, content, line, where, places)
    return iter([cast("dict[str, Any]", _filled(fields, line, places))])


def _unused_word(line: bytearray) -> str:
    """A word that occurs nowhere in the line."""
    number = 0
    while f"long-string-{number}-".encode() in line:
        number += 1
    return f"long-string-{number}-"


def _skeleton(line: bytearray, ranges: list[_Range], prefix: str) -> bytes:
    parts: list[bytes] = []
    position = 0
    for index, where in enumerate(ranges):
        parts += [bytes(line[position : where.start]), f"{prefix}{index}".encode()]
        position = where.end
    parts.append(bytes(line[position:]))
    return b"".join(parts)


def _chunks(
    fields: dict[str, Any], content: dict[str, Any], line: bytearray, where: _Range, places: dict[str, _Range]
) -> Iterator[dict[str, Any]]:
    content["text"] = ""
    whole = cast("dict[str, Any]", _filled(fields, line, places))
    target = whole["params"]["update"]["content"]
    for piece in _pieces(line, where):
        target["text"] = piece
        yield whole


def _pieces(line: bytearray, where: _Range) -> Iterator[str]:
    start = where.start
    while start < where.end:
        end = _boundary(line, start, min(where.end, start + PIECE_BYTES), where.end)
        yield _unescaped(bytes(line[start:end]))
        start = end


def _boundary(line: bytearray, start: int, end: int, limit: int) -> int:
    """`end`, or a little before it, so that neither a character nor an escape is split."""
    if end >= limit:
        return limit
    for _ in range(3):
        if line[end] & 0xC0 != 0x80:
            break
        end -= 1
    last = line.rfind(b"\\", max(start, end - _ESCAPE_BYTES), end)
    if last < 0:
        return end
    first = last
    while first > start and line[first - 1] == ord("\\"):
        first -= 1
    if (last - first) % 2:  # an even number of them: each pair is a backslash, none begins an escape
        return end
    length = _ESCAPE_BYTES if line[last + 1] == ord("u") else 2
    return last if last + length > end and last > start else end


def _unescaped(raw: bytes) -> str:
    text = hygiene.decode(raw)
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


def _filled(value: object, line: bytearray, places: dict[str, _Range]) -> object:
    """The value with every long string as its beginning and a marker."""
    if isinstance(value, str) and value in places:
        where = places[value]
        head = _unescaped(bytes(line[where.start : _boundary(line, where.start, where.start + _KEPT_BYTES, where.end)]))
        return f"{hygiene.clean(head)}… [cut: {where.end - where.start} bytes]"
    if isinstance(value, dict):
        return {str(key): _filled(item, line, places) for key, item in cast("dict[object, object]", value).items()}
    if isinstance(value, list):
        return [_filled(item, line, places) for item in cast("list[object]", value)]
    return value
