"""One prompt and what came of it, recorded in wire order between the prompt's bytes and its response."""

from typing import Final

from turnkeeper.kit import text as hygiene
from turnkeeper.sandboxd.eventlog import EventLog
from turnkeeper.sandboxd.framing import Envelope
from turnkeeper.sandboxd.permissions import ToolCall
from turnkeeper.sandboxd.updates import Happened, Said, read_update
from turnkeeper.wire.sandbox_start import SandboxLimits
from turnkeeper.wire.turn import EventKind, Outcome

_TOOLS_MAX: Final = 10_000
_GARBAGE_NOTICES_MAX: Final = 20
_CHUNK_KINDS: Final = {"agent_message_chunk": EventKind.TEXT, "agent_thought_chunk": EventKind.THOUGHT}
_OUTCOMES: Final = {
    "end_turn": Outcome.COMPLETED,
    "max_tokens": Outcome.COMPLETED,
    "max_turn_requests": Outcome.COMPLETED,
    "cancelled": Outcome.CANCELLED,
}


def outcome_of(stop_reason: str) -> Outcome:
    """How a turn ended by the agent's own word; a refusal or a word that nobody knows is a failure."""
    return _OUTCOMES.get(stop_reason, Outcome.FAILED)


class FinalMessage:
    """The assistant's message: all that it said in the turn, paragraphs kept apart where a tool ran in between; bounded."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[str] = []
        self._kept_bytes = 0
        self._all_bytes = 0
        self._interrupted = False
        self._last = ""

    def add(self, text: str) -> None:
        """The next piece, clean."""
        if not text:
            return
        if self._interrupted and self._last and not self._last.endswith("\n") and not text.startswith("\n"):
            self._keep("\n\n")
        self._interrupted = False
        self._last = text[-1]
        self._keep(text)

    def _keep(self, text: str) -> None:
        size = len(text.encode())
        self._all_bytes += size
        if self._kept_bytes <= self._max_bytes:
            self._parts.append(text if size <= self._max_bytes else text[: self._max_bytes + 1])
            self._kept_bytes += size

    def interrupt(self) -> None:
        """Something else than text came."""
        self._interrupted = True

    def result(self) -> tuple[str, int | None]:
        """The message, and its size in bytes where it was cut."""
        text = "".join(self._parts)
        if self._all_bytes <= self._max_bytes:
            return text, None
        marker = f"… [cut: {self._all_bytes} bytes]"
        room = max(0, self._max_bytes - len(marker.encode()))
        return text.encode()[:room].decode("utf-8", "ignore") + marker, self._all_bytes


class Turn:
    """Records one turn. `open` from the moment that the prompt is written until its response; closed, it takes nothing."""

    def __init__(self, run: str, log: EventLog, limits: SandboxLimits) -> None:
        self.run = run
        self.log = log
        self.open = False
        self.cancelled = False
        """Whether `session/cancel` was sent."""
        self._limits = limits
        self._joiner = hygiene.TextJoiner()
        self._speaking = EventKind.TEXT
        self._message = FinalMessage(limits.final_message_bytes_max)
        self._tools: dict[str, ToolCall] = {}
        self._garbage = 0

    def record(self, update: dict[str, object]) -> None:
        """One `session/update`."""
        if not self.open:
            return
        match read_update(update):
            case Said(kind, text):
                self._say(kind, text)
            case Happened(kind, data):
                self.happened(kind, data)
                if kind in (EventKind.TOOL_CALL, EventKind.TOOL_UPDATE):
                    self._remember_tool(data)
            case None:
                pass

    def happened(self, kind: EventKind, data: dict[str, object]) -> None:
        """An event that is no text."""
        self._flush()
        if kind is EventKind.TOOL_CALL:
            self._message.interrupt()
        self.log.append(kind, data)

    def notice(self, code: str, text: str) -> None:
        """Something that the manager did or saw."""
        self._flush()
        self.log.append(EventKind.NOTICE, {"code": code, "text": text})

    def garbage(self, line: str) -> None:
        """A line that is no message."""
        self._garbage += 1
        if self.open and self._garbage <= _GARBAGE_NOTICES_MAX:
            self.notice("not_a_message", f"the agent wrote a line that is no message: {line}")

    def oversized(self, envelope: Envelope, size: int) -> None:
        """A line above the frame limit: its beginning is shown where it was text, and the cut is said in any case."""
        if not self.open:
            return
        kind = _CHUNK_KINDS.get(envelope.chunk or "")
        if kind is not None and envelope.text:
            shown = hygiene.cut(hygiene.join_surrogates(envelope.text), self._limits.event_bytes_max // 2)[0]
            self._say(kind, shown if shown.endswith("bytes]") else f"{shown}… [cut: a line of {size} bytes]")
        self.notice("line_cut", f"a line of {size} bytes is longer than {self._limits.frame_bytes_max} and was cut")

    def tool(self, call_id: str) -> ToolCall | None:
        """What was announced of a tool call."""
        return self._tools.get(call_id)

    def close(self) -> tuple[str, int | None]:
        """The response came: nothing more belongs to this turn. The final message, and its size where it was cut."""
        self._flush()
        self.open = False
        return self._message.result()

    def _say(self, kind: EventKind, text: str) -> None:
        if kind is not self._speaking:
            self._flush()
            self._speaking = kind
        self._emit(self._joiner.feed(text))

    def _flush(self) -> None:
        self._emit(self._joiner.flush())

    def _emit(self, text: str) -> None:
        if not text:
            return
        self.log.append_text(self._speaking, text)
        if self._speaking is EventKind.TEXT:
            self._message.add(text)

    def _remember_tool(self, data: dict[str, object]) -> None:
        call_id = str(data["id"])
        known = self._tools.get(call_id)
        if known is None and len(self._tools) >= _TOOLS_MAX:
            return
        title, kind = str(data.get("title") or ""), str(data.get("kind") or "")
        self._tools[call_id] = ToolCall(
            call_id, (title or (known.title if known else ""))[:1000], kind or (known.kind if known else "")
        )
