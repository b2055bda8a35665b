"""Lines of bytes from an agent's stdout, bounded (F11).

A line above the limit is kept by its first part only; the rest is thrown away as it comes, and the next line is read as
if nothing had happened.
"""

import re
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from typing import Final

OVERSIZED_HEAD_BYTES: Final = 256 * 1024
_PART: Final = re.compile(r'[ \t\r]*(?:[{}\[\],:]|"|[^\s{}\[\],:"]+)')
_DECODER: Final = JSONDecoder(strict=False)


@dataclass(frozen=True)
class Oversized:
    """A line that was longer than the limit: its first part and its whole size in bytes."""

    head: bytes
    size: int


class LineSplitter:
    """Cuts a stream of bytes into lines without their newline; empty lines are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._skipped: int | None = None  # bytes of an oversized line so far; None while the line is within the limit

    def feed(self, data: bytes) -> list[bytearray | Oversized]:
        """The lines that are complete now."""
        lines: list[bytearray | Oversized] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._take(data, start, end)
            if (line := self._finish()) is not None:
                lines.append(line)
            start = end + 1
        self._take(data, start, len(data))
        return lines

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._skipped is not None:
            self._skipped += end - start
            return
        self._buffer += memoryview(data)[start:end]
        if len(self._buffer) > self._limit:
            self._skipped = len(self._buffer)
            self._buffer = self._buffer[: min(OVERSIZED_HEAD_BYTES, self._limit)]

    def _finish(self) -> bytearray | Oversized | None:
        line, self._buffer = self._buffer, bytearray()
        skipped, self._skipped = self._skipped, None
        if skipped is not None:
            return Oversized(bytes(line), skipped)
        return line if line and not line.isspace() else None


@dataclass(frozen=True)
class Envelope:
    """What the first part of a JSON-RPC message shows of it: enough to answer it, or to know whose answer it was."""

    id: int | str | None = None
    method: str | None = None
    response: bool = False
    chunk: str | None = None
    text: str | None = None


def read_head(head: bytes) -> Envelope:
    """Read the beginning of a message whose end is missing. Names that come after the cut are simply not seen."""
    text = head.decode("utf-8", "replace")
    seen: dict[str, object] = {}
    path: list[str] = []
    key = ""
    position = 0
    while (match := _PART.match(text, position)) is not None:
        part, position = match.group().strip(), match.end()
        if part in "{[":
            path.append(key)
        elif part in "}]" and path:
            path.pop()
        elif part == '"':
            value, position = _string(text, position)
            if position < len(text) and text[position : position + 20].lstrip()[:1] == ":":
                key = value
            else:
                seen.setdefault(".".join([*path[1:], key]), value)
        elif part not in "{}[],:":
            seen.setdefault(".".join([*path[1:], key]), int(part) if part.isdecimal() and len(part) < 19 else part)
        if position >= len(text):
            break
        if len(path) == 1 and key in ("result", "error"):
            seen["response"] = True
    return _envelope(seen)


def _string(text: str, start: int) -> tuple[str, int]:
    """The string that begins after the quote before `start`, and where it ends; a cut one goes to the end."""
    try:
        value, end = _DECODER.raw_decode(text, start - 1)
        return str(value), end
    except JSONDecodeError:
        rest = text[start:]
        for cut in range(len(rest), max(-1, len(rest) - 14), -1):  # a cut escape takes at most 12 characters with it
            try:
                return str(_DECODER.decode(f'"{rest[:cut]}"')), len(text)
            except JSONDecodeError:
                continue
        return "", len(text)


def _envelope(seen: dict[str, object]) -> Envelope:
    message_id, method, text = seen.get("id"), seen.get("method"), seen.get("params.update.content.text")
    chunk = seen.get("params.update.sessionUpdate")
    return Envelope(
        id=message_id if isinstance(message_id, int | str) else None,
        method=method if isinstance(method, str) else None,
        response="response" in seen and method is None,
        chunk=chunk if isinstance(chunk, str) else None,
        text=text if isinstance(text, str) else None,
    )
