"""The state machines as Mermaid diagrams, drawn from the tables themselves.

`python -m turnkeeper.domain.diagram > docs/state-machines.md` writes the page; a test compares it.
"""

import sys
from collections.abc import Mapping

from turnkeeper.domain.host import HOST_TABLE, HostState
from turnkeeper.domain.machine import E, S
from turnkeeper.domain.membership import ACTIVATION_TABLE, MEMBERSHIP_TABLE, ActivationState, MembershipState
from turnkeeper.domain.run import TABLE as RUN_TABLE
from turnkeeper.domain.run import RunStatus

_HEAD = """# State machines

Drawn from the tables in `src/turnkeeper/domain/`. Do not edit: run
`python -m turnkeeper.domain.diagram > docs/state-machines.md`.
"""


def mermaid(table: Mapping[tuple[S, E], S], states: type[S], initial: S) -> str:
    """A Mermaid `stateDiagram-v2`: one arrow for each pair of states, labelled with the events that take it.

    States that nothing leaves but themselves are drawn as final. Events that keep a state are not drawn.
    """
    arrows: dict[tuple[S, S], list[str]] = {}
    for (state, event), following in table.items():
        if state is not following:
            arrows.setdefault((state, following), []).append(event.value)
    order = {state: index for index, state in enumerate(states)}
    lines = ["stateDiagram-v2", f"    [*] --> {initial.value}"]
    for (state, following), events in sorted(
        arrows.items(), key=lambda arrow: (order[arrow[0][0]], order[arrow[0][1]])
    ):
        lines.append(f"    {state.value} --> {following.value}: {', '.join(events)}")
    left = {state for state, _ in arrows}
    lines += [f"    {state.value} --> [*]" for state in states if state not in left]
    return "\n".join(lines)


def page() -> str:
    """The whole page, ending in a newline."""
    sections = (
        (
            "Run",
            "`domain/run.py`. A run with `cancel_requested_at` never ends `completed`: see `transition`.",
            mermaid(RUN_TABLE, RunStatus, RunStatus.PENDING),
        ),
        (
            "Membership",
            "`domain/membership.py`. It comes into being by its first activation.",
            mermaid(MEMBERSHIP_TABLE, MembershipState, MembershipState.ACTIVE),
        ),
        (
            "Activation",
            "`domain/membership.py`.",
            mermaid(ACTIVATION_TABLE, ActivationState, ActivationState.PREPARING),
        ),
        ("Host", "`domain/host.py`.", mermaid(HOST_TABLE, HostState, HostState.READY)),
    )
    parts = [_HEAD]
    for title, text, diagram in sections:
        parts.append(f"\n## {title}\n\n{text}\n\n```mermaid\n{diagram}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
