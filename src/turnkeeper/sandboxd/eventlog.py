"""The numbered events of one activation: kept as the lines that go out, bounded, readable again from any number."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final, cast

from turnkeeper.kit import text as hygiene
from turnkeeper.wire.sandbox import AgentFailure
from turnkeeper.wire.sandbox_start import SandboxLimits
from turnkeeper.wire.turn import EventKind, SettlementReceipt

_BATCH_BYTES: Final = 256 * 1024
_LINE_OVERHEAD_BYTES: Final = 128
_RESERVE_BYTES: Final = 1024 * 1024
"""Room for permissions and notices after the events of a turn have filled theirs."""
_STRING_CAPS: Final = (16384, 4096, 1024, 256, 64)
_ITEMS_CAPS: Final = (1000, 200, 50, 10, 4)


def encode(value: object) -> bytes:
    """Compact JSON in UTF-8; the value must be clean."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def fit(data: dict[str, Any], max_bytes: int) -> tuple[dict[str, Any], int | None]:
    """`data` with its long strings and lists cut until its JSON takes at most `max_bytes`; and its size, where it was cut."""
    size = len(encode(data))
    if size <= max_bytes:
        return data, None
    for string_cap, items_cap in zip(_STRING_CAPS, _ITEMS_CAPS, strict=True):
        smaller = cast("dict[str, Any]", _capped(data, min(string_cap, max_bytes // 4), items_cap))
        if len(encode(smaller)) <= max_bytes:
            return smaller, size
    return {"cut": f"… [cut: {size} bytes]"}, size


def _capped(value: object, string_cap: int, items_cap: int) -> object:
    if isinstance(value, str):
        return hygiene.cut(value, max(string_cap, 40))[0]
    if isinstance(value, list):
        items = cast("list[object]", value)
        kept = [_capped(item, string_cap, items_cap) for item in items[:items_cap]]
        return kept if len(items) <= items_cap else [*kept, f"… [cut: {len(items)} items]"]
    if isinstance(value, dict):
        pairs = list(cast("dict[str, object]", value).items())
        return {
            hygiene.cut(key, max(string_cap, 40))[0]: _capped(item, string_cap, items_cap)
            for key, item in pairs[:items_cap]
        }
    return value


def pieces(text: str, max_bytes: int) -> list[str]:
    """`text` cut into pieces whose JSON takes at most `max_bytes` each; nothing is lost and no character split."""
    if len(text) <= max_bytes and len(encode(text)) <= max_bytes:
        return [text]
    result: list[str] = []
    step = max_bytes // 2  # characters; most texts need one byte for each, and the rest is cut again
    for start in range(0, len(text), step):
        piece = text[start : start + step]
        if len(encode(piece)) <= max_bytes:
            result.append(piece)
        else:
            half = len(piece) // 2
            result += pieces(piece[:half], max_bytes) + pieces(piece[half:], max_bytes)
    return result


class EventLog:
    """Appended to by the event loop, in wire order; read by any number of streams. The last line says how the turn ended."""

    def __init__(self, limits: SandboxLimits) -> None:
        self._limits = limits
        self._lines: list[bytes] = []
        self._bytes = 0
        self._full = False
        self._last: bytes | None = None
        self._changed = asyncio.Event()

    @property
    def next_n(self) -> int:
        """The number of the next event."""
        return len(self._lines) + 1

    @property
    def finished(self) -> bool:
        """Whether the last line was written."""
        return self._last is not None

    def append(self, kind: EventKind, data: dict[str, Any]) -> None:
        """Add an event whose data may be anything that an agent sent: it is cleaned, and cut above the limit."""
        if self._last is not None:
            return
        clean = cast("dict[str, Any]", hygiene.clean_json(data))
        fitted, original = fit(clean, self._limits.event_bytes_max)
        line: dict[str, Any] = {"n": self.next_n, "kind": kind.value, "data": fitted}
        if original is not None:
            line["original_bytes"] = original
        self._add(kind, encode(line))

    def append_text(self, kind: EventKind, text: str) -> None:
        """Add clean text, in as many events as it needs: text is never cut as long as the turn has room."""
        for piece in pieces(text, self._limits.event_bytes_max - _LINE_OVERHEAD_BYTES):
            if self._last is None:
                self._add(kind, encode({"n": self.next_n, "kind": kind.value, "data": {"text": piece}}))

    def _add(self, kind: EventKind, line: bytes) -> None:
        size = len(line) + _LINE_OVERHEAD_BYTES
        room = self._limits.turn_events_bytes_max
        if kind in (EventKind.PERMISSION, EventKind.NOTICE, EventKind.SESSION):
            room += _RESERVE_BYTES
        if self._full and kind not in (EventKind.PERMISSION, EventKind.NOTICE):
            return
        if self._bytes + size > room:
            if not self._full:
                self._full = True
                text = f"the events of this turn take more than {self._limits.turn_events_bytes_max} bytes; the rest is not kept"
                self.append(EventKind.NOTICE, {"code": "events_cut", "text": text})
            return
        self._lines.append(line)
        self._bytes += size
        self._wake()

    def finish(self, *, receipt: SettlementReceipt | None = None, failure: AgentFailure | None = None) -> None:
        """Write the last line, once; what comes later is not of this turn."""
        if self._last is not None:
            return
        line: dict[str, Any] = {"n": self.next_n, "last": True}
        if receipt is not None:
            line["receipt"] = receipt.model_dump(mode="json")
        if failure is not None:
            line["failure"] = failure.model_dump(mode="json")
        self._last = encode(line)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def stream(self, after: int) -> AsyncIterator[bytes]:
        """The lines behind number `after`, as they come, several at a time; ends after the last line."""
        position = max(0, after)
        while True:
            while position < len(self._lines):
                batch: list[bytes] = []
                size = 0
                while position < len(self._lines) and size < _BATCH_BYTES:
                    batch.append(self._lines[position])
                    size += len(self._lines[position])
                    position += 1
                yield b"\n".join(batch) + b"\n"
            if self._last is not None:
                yield self._last + b"\n"
                return
            await self._changed.wait()
