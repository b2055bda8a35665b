"""The tool calls of a turn that has ended, as its stored events tell them: one entry for each call, with what it said last."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from turnkeeper.wire.turn import Event

OUTPUT_CHARS_MAX = 20_000


@dataclass
class ToolCall:
    """One call. `output` is text of the agent's, as it came."""

    title: str
    status: str = ""
    output: str = ""


def calls_of(events: Sequence[Event]) -> list[ToolCall]:
    """The calls in the order in which they began."""
    calls: dict[str, ToolCall] = {}
    for event in events:
        data = event.data
        name = str(data.get("id"))
        call = calls.setdefault(name, ToolCall(str(data.get("title") or data.get("kind") or name)))
        if data.get("title"):
            call.title = str(data["title"])
        call.status = str(data.get("status") or call.status)
        call.output = _output(data) or call.output
    return list(calls.values())


def _output(data: dict[str, Any]) -> str:
    """The text of a call's content; diffs and terminals are left to the change summary."""
    texts: list[str] = []
    for block in cast("list[Any]", data.get("content") or []):
        content: Any = cast("dict[str, Any]", block).get("content") if isinstance(block, dict) else None
        if isinstance(content, dict) and cast("dict[str, Any]", content).get("text"):
            texts.append(str(cast("dict[str, Any]", content)["text"]))
    text = "\n".join(texts)
    return text if len(text) <= OUTPUT_CHARS_MAX else text[:OUTPUT_CHARS_MAX] + "…"
