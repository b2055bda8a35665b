"""Requests of an agent to its client, answered by rule: nobody is asked while a turn runs (questions come with their issue).

Options are chosen by `kind`, never by id: ids are the agent's own words and mean nothing to anybody else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from turnkeeper.sandboxd.updates import as_object, objects, word
from turnkeeper.wire.sandbox import PermissionRule

_KINDS: Final = {"allow": ("allow_once", "allow_always"), "reject": ("reject_once", "reject_always")}


@dataclass(frozen=True)
class ToolCall:
    """What is known of a tool call that a permission is asked for."""

    id: str
    title: str
    kind: str


@dataclass(frozen=True)
class Decision:
    """The answer to a permission request, with what decided it: a rule's kind, `default` or `cancelled`."""

    response: dict[str, Any]
    event: dict[str, Any]


def action_for(kind: str, rules: Sequence[PermissionRule]) -> tuple[Literal["allow", "reject"], str]:
    """The first rule whose kind equals, or is `*`; none = reject. And which rule it was."""
    for rule in rules:
        if rule.kind in (kind, "*"):
            return rule.action, rule.kind
    return "reject", "default"


def decide(
    params: dict[str, Any], known: ToolCall | None, rules: Sequence[PermissionRule], *, cancelled: bool
) -> Decision:
    """Answer `session/request_permission`. `known` is the tool call as it was announced, for what the request leaves out."""
    call = as_object(params.get("toolCall"))
    kind = word(call.get("kind")) or (known.kind if known else "") or "other"
    title = word(call.get("title")) or (known.title if known else "") or kind
    options = objects(params.get("options"))
    action, rule = ("reject", "cancelled") if cancelled else action_for(kind, rules)
    option = None if cancelled else _choose(options, action)
    if option is None:
        outcome: dict[str, Any] = {"outcome": "cancelled"}
        answer: dict[str, Any] = {"outcome": "cancelled"}
    else:
        outcome = {"outcome": "selected", "optionId": option.get("optionId")}
        answer = {"outcome": "selected", "option": word(option.get("kind"))}
    event = {
        "id": word(call.get("toolCallId")),
        "tool": word(call.get("toolCallId")),
        "title": title,
        "kind": kind,
        "options": [{"name": word(item.get("name")), "kind": word(item.get("kind"))} for item in options],
        "answer": answer,
        "rule": rule,
    }
    return Decision({"outcome": outcome}, event)


def _choose(options: Sequence[dict[str, Any]], action: Literal["allow", "reject"]) -> dict[str, Any] | None:
    """The narrowest option of the wanted kind; None where the agent offers none, which is answered `cancelled`."""
    for kind in _KINDS[action]:
        for option in options:
            if option.get("kind") == kind and isinstance(option.get("optionId"), str):
                return option
    return None
