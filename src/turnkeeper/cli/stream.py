"""A run's stream for people: text as it comes, tool calls and states as lines between."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from turnkeeper.cli.output import say, say_json
from turnkeeper.wire.turn import ChangeSummary, EventKind

if TYPE_CHECKING:
    from turnkeeper.client.owner import StreamEvent


def show_stream(events: "Iterator[StreamEvent]", *, as_json: bool) -> dict[str, Any]:
    """Print the events as they come, and return the data of the `end`. With `as_json` each event is one line of JSON."""
    end: dict[str, Any] = {}
    printer = Printer()
    for event in events:
        if event.kind is EventKind.END:
            end = event.data
        if as_json:
            say_json({"seq": event.seq, "kind": event.kind, "data": event.data})
        else:
            printer.show(event.kind, event.data)
    printer.finish_line()
    return end


OUTPUT_LINES_MAX = 12
_BAD = (EventKind.ERROR, EventKind.CONVERSATION)


class Printer:
    """Remembers whether the cursor stands in the middle of a text, and what the tool calls are called."""

    def __init__(self) -> None:
        self._in_text = False
        self._titles: dict[str, str] = {}

    def show(self, kind: EventKind, data: dict[str, Any]) -> None:
        """Print one event."""
        if kind is EventKind.TEXT:
            text = str(data.get("text", ""))
            say(text, nl=False)
            self._in_text = not text.endswith("\n") if text else self._in_text
            return
        line = self._line(kind, data)
        if line is not None:
            self.finish_line()
            # What somebody asked for is no error.
            bad = kind in _BAD and data.get("code") != "cancelled"
            say(line, dim=not bad, fg="red" if bad else None)

    def finish_line(self) -> None:
        """End the text's line, if one is open."""
        if self._in_text:
            say()
            self._in_text = False

    def _line(self, kind: EventKind, data: dict[str, Any]) -> str | None:
        match kind:
            case EventKind.SESSION:
                return f"· session {data.get('mode')}"
            case EventKind.TOOL_CALL:
                return self._tool_call(data)
            case EventKind.TOOL_UPDATE:
                return self._tool_update(data)
            case EventKind.PERMISSION:
                answer: dict[str, Any] = data.get("answer") or {}
                return f"· permission for {data.get('title') or 'a tool'}: {answer.get('outcome')}"
            case EventKind.NOTICE:
                return f"· {data.get('text')}"
            case EventKind.CHANGES:
                paths = [file.path for file in ChangeSummary.model_validate(data).files]
                return f"· changed: {', '.join(paths[:5]) or 'nothing'}{' …' if len(paths) > 5 else ''}"
            case EventKind.ERROR:
                return _error(data)
            case EventKind.CONVERSATION:
                return f"! {data.get('text') or data.get('state')}"
            case EventKind.GAP:
                return f"· events {data.get('from')} to {data.get('to')} are no longer stored"
            case EventKind.END:
                return f"· {data.get('status')}"
            case _:
                return None

    def _tool_call(self, data: dict[str, Any]) -> str:
        title = self._titles[str(data.get("id"))] = str(data.get("title") or data.get("id"))
        return f"· {data.get('kind') or 'tool'}: {title}"

    def _tool_update(self, data: dict[str, Any]) -> str | None:
        """The end of a tool call, with the first lines of what it said."""
        status = data.get("status")
        if status not in ("completed", "failed"):
            return None
        lines = [f"    {line}" for line in _output(data).splitlines()]
        if len(lines) > OUTPUT_LINES_MAX:
            lines[OUTPUT_LINES_MAX:] = [f"    … {len(lines) - OUTPUT_LINES_MAX} more lines"]
        if status == "failed":
            lines.insert(0, f"· failed: {data.get('title') or self._titles.get(str(data.get('id')), 'tool')}")
        return "\n".join(lines) or None


def _error(data: dict[str, Any]) -> str:
    """What went wrong, and below it why: our own reason, or what the agent said of itself."""
    lines = [f"! {data.get('text') or data.get('code')}"]
    if data.get("detail"):
        says = "the agent said: " if data.get("stage") == "prompt" and not data.get("refusal") else ""
        lines += [
            f"  {says}{line}" if n == 0 else f"  {line}" for n, line in enumerate(str(data["detail"]).splitlines())
        ]
    return "\n".join(lines)


def _output(data: dict[str, Any]) -> str:
    """The text of a tool call's content; diffs and terminals are left to the change summary."""
    blocks: list[dict[str, Any]] = data.get("content") or []
    contents: list[dict[str, Any]] = [block.get("content") or {} for block in blocks if block.get("type") == "content"]
    return "\n".join(str(content.get("text", "")) for content in contents)
