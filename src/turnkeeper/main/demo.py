"""The demo: a conversation of three turns with the scripted agent, checked step by step against what it promises."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnkeeper.client.owner import OwnerClient, StreamEvent
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.ids import new_id
from turnkeeper.wire.public import NewConversation, RunDetail
from turnkeeper.wire.turn import EventKind

AGENT = "scripted"
TURNS = (
    ("a file is written", "/write notes.txt The answer is 42.\nPlease remember the word heron."),
    ("a command runs", "/run wc -w < notes.txt > words.txt && cat notes.txt words.txt"),
    ("earlier turns are remembered", "What do you remember?"),
)
EXPECTED_OUTPUT = "The answer is 42."
EXPECTED_MEMORY = "turn 3, remembering 2 earlier turns"


@dataclass
class TurnReport:
    """What one turn did, and how long it took from the message's POST, in ms."""

    run: RunDetail
    first_text_ms: float | None
    took_ms: float
    text: str
    tool_output: str


@dataclass
class DemoReport:
    """The whole conversation. `broken` names each promise that did not hold; empty: all held."""

    thread_id: str
    turns: list[TurnReport] = field(default_factory=list[TurnReport])
    broken: list[str] = field(default_factory=list[str])

    def as_json(self) -> dict[str, Any]:
        """Run ids, statuses, native turns, workspace epochs and timings."""
        return {
            "ok": not self.broken,
            "broken": self.broken,
            "thread_id": self.thread_id,
            "turns": [
                {
                    "run_id": turn.run.id,
                    "status": turn.run.status,
                    "native_turn": turn.run.native_turn,
                    "epoch": turn.run.epoch,
                    "changed": [file.path for file in changes.files] if (changes := _changes(turn.run)) else [],
                    "first_text_ms": turn.first_text_ms,
                    "took_ms": turn.took_ms,
                }
                for turn in self.turns
            ],
        }


def converse(
    client: OwnerClient,
    workspace: Callable[[str], Path],
    on_turn: Callable[[int, str, str], None],
    on_event: Callable[[StreamEvent], None],
    clock: Clock = system_clock,
) -> DemoReport:
    """Run the three turns. `workspace(uid)` is the owner's workspace on this machine, where the file must have arrived."""
    conversation = client.create_conversation(NewConversation(agent=AGENT, title="demo"), idempotency_key=new_id())
    report = DemoReport(conversation.thread_id)
    for number, (what, text) in enumerate(TURNS, start=1):
        on_turn(number, what, text)
        report.turns.append(_turn(client, conversation.thread_id, text, on_event, clock))
    workdir = workspace(client.me().uid) / conversation.workdir
    report.broken = broken_promises(report.turns, workdir)
    return report


def _turn(
    client: OwnerClient, thread_id: str, text: str, on_event: Callable[[StreamEvent], None], clock: Clock
) -> TurnReport:
    sent = clock.monotonic()
    run_id = client.submit(thread_id, text, idempotency_key=new_id()).run.id
    first_text_ms, said, output = None, "", ""
    for event in client.run_events(run_id):
        if event.kind is EventKind.TEXT:
            first_text_ms = first_text_ms or round((clock.monotonic() - sent) * 1000, 1)
            said += str(event.data.get("text", ""))
        elif event.kind is EventKind.TOOL_UPDATE:
            output += str(event.data.get("content", ""))
        on_event(event)
    took_ms = round((clock.monotonic() - sent) * 1000, 1)
    return TurnReport(client.run(run_id), first_text_ms, took_ms, said, output)


def broken_promises(turns: list[TurnReport], workdir: Path) -> list[str]:
    """One line for each promise of the demo that did not hold; `workdir` is looked at on this machine."""
    lines: list[str] = []
    for number, turn in enumerate(turns, start=1):
        run = turn.run
        if run.status != "completed":
            lines.append(f"turn {number} ended {run.status} ({run.error_code}), not completed")
        elif (run.native_turn, run.epoch) != (number, number):
            lines.append(f"turn {number} settled as native turn {run.native_turn}, epoch {run.epoch}")
        if run.snapshot is None or run.snapshot.tree_id is None:
            why = run.snapshot.unavailable_why if run.snapshot else "none was recorded"
            lines.append(f"turn {number} has no snapshot ({why})")
    if lines:
        return lines
    for number, name in ((1, "notes.txt"), (2, "words.txt")):
        changes = _changes(turns[number - 1].run)
        if changes is None or name not in [file.path for file in changes.files]:
            lines.append(f"the change summary of turn {number} does not name {name}")
    file = workdir / "notes.txt"
    if not file.is_file() or EXPECTED_OUTPUT not in file.read_text():
        lines.append(f"{file} was not written")
    if EXPECTED_OUTPUT not in turns[1].tool_output + turns[1].text:
        lines.append("the command's output did not arrive")
    if EXPECTED_MEMORY not in turns[2].text:
        lines.append(f"the agent's third answer is {turns[2].text!r}: earlier turns are not remembered")
    return lines


def _changes(run: RunDetail) -> Any:
    return run.snapshot.changes if run.snapshot else None
