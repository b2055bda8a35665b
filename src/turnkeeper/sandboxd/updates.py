"""From ACP's `session/update` to the events that owners read. Pure; the input is whatever an agent sent."""

from dataclasses import dataclass
from typing import Any, cast

from turnkeeper.wire.turn import EventKind


@dataclass(frozen=True)
class Said:
    """Text (`EventKind.TEXT`) or thought (`EventKind.THOUGHT`), perhaps cut between the halves of a surrogate pair."""

    kind: EventKind
    text: str


@dataclass(frozen=True)
class Happened:
    """An event that is no text."""

    kind: EventKind
    data: dict[str, Any]


def read_update(update: dict[str, Any]) -> Said | Happened | None:
    """What an update says; None for kinds that owners do not read, unknown ones included."""
    match update.get("sessionUpdate"):
        case "agent_message_chunk":
            return Said(EventKind.TEXT, block_text(update.get("content")))
        case "agent_thought_chunk":
            return Said(EventKind.THOUGHT, block_text(update.get("content")))
        case "tool_call":
            return Happened(EventKind.TOOL_CALL, tool_call(update))
        case "tool_call_update":
            return Happened(EventKind.TOOL_UPDATE, tool_update(update))
        case "plan":
            return Happened(
                EventKind.PLAN, {"entries": [plan_entry(entry) for entry in objects(update.get("entries"))]}
            )
        case _:
            return None


def block_text(block: object) -> str:
    """The text of a content block; one that is no text shows as its kind or address."""
    fields = as_object(block)
    if fields.get("type") == "text":
        return word(fields.get("text"))
    if fields.get("type") == "resource_link":
        return word(fields.get("uri"))
    resource = as_object(fields.get("resource"))
    return word(resource.get("text")) or word(resource.get("uri")) or f"[{word(fields.get('type')) or 'nothing'}]"


def tool_call(update: dict[str, Any]) -> dict[str, Any]:
    """The data of a `tool_call` event."""
    data: dict[str, Any] = {
        "id": word(update.get("toolCallId")),
        "title": word(update.get("title")),
        "kind": word(update.get("kind")) or "other",
        "status": word(update.get("status")) or "pending",
    }
    if update.get("rawInput") is not None:
        data["input"] = update["rawInput"]
    if locations := objects(update.get("locations")):
        data["locations"] = locations
    if content := objects(update.get("content")):
        data["content"] = content
    return data


def tool_update(update: dict[str, Any]) -> dict[str, Any]:
    """The data of a `tool_update` event: what the agent left out is left out."""
    data: dict[str, Any] = {"id": word(update.get("toolCallId"))}
    for name in ("status", "title", "kind"):
        if update.get(name) is not None:
            data[name] = word(update[name])
    data["content"] = objects(update.get("content"))
    if not data["content"] and update.get("rawOutput") is not None:
        data["output"] = update["rawOutput"]
    return data


def plan_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """One line of a plan."""
    return {name: word(entry.get(name)) for name in ("content", "status", "priority")}


def as_object(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list; what is none is left out."""
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def word(value: object) -> str:
    """The value if it is a text, else nothing."""
    return value if isinstance(value, str) else ""
