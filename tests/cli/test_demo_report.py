"""The demo's own judgement: it must find each promise that was not kept. (That it passes is shown by running it.)"""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from turnkeeper.kit.ids import new_id
from turnkeeper.main import demo
from turnkeeper.main.demo import DemoReport, TurnReport
from turnkeeper.wire.public import RunDetail, RunSnapshot
from turnkeeper.wire.turn import ChangedFile, ChangeSummary

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def turn(
    number: int, *, changed: tuple[str, ...] = (), text: str = "", tool_output: str = "", **fields: Any
) -> TurnReport:
    """A turn that kept its promises, unless `fields` of its run say otherwise."""
    files = tuple(ChangedFile(path=path, status="added") for path in changed)
    run = RunDetail(
        id=new_id(), thread_id=new_id(), agent="scripted", kind="chat", status="completed", native_turn=number,
        epoch=number, created_at=NOW, prompt="", snapshot=RunSnapshot(
            epoch=number, tree_id="0" * 40, unavailable_why=None, changes=ChangeSummary(files=files)
        ),
    )  # fmt: skip
    return TurnReport(run.model_copy(update=fields), 1.0, 2.0, text, tool_output)


@pytest.fixture
def good(tmp_path: Path) -> list[TurnReport]:
    """Three turns as they should be, and the file that they wrote."""
    (tmp_path / "notes.txt").write_text("The answer is 42.\n")
    return [
        turn(1, changed=("notes.txt",)),
        turn(2, changed=("words.txt",), tool_output="The answer is 42.\n4\n"),
        turn(3, text="turn 3, remembering 2 earlier turns: What do you remember?"),
    ]


def test_a_demo_that_kept_its_promises_is_good(good: list[TurnReport], tmp_path: Path) -> None:
    """Nothing is complained about, and the JSON says what the issue asks for."""
    assert demo.broken_promises(good, tmp_path) == []
    shown = DemoReport("thread", good).as_json()
    assert shown["ok"] is True
    assert [set(one) >= {"run_id", "status", "native_turn", "epoch", "took_ms"} for one in shown["turns"]] == [True] * 3


@pytest.mark.parametrize(
    ("number", "fields", "said"),
    [
        (1, {"status": "failed", "error_code": "agent_exited"}, "turn 1 ended failed (agent_exited)"),
        (2, {"native_turn": 1}, "turn 2 settled as native turn 1"),
        (3, {"epoch": 2}, "turn 3 settled as native turn 3, epoch 2"),
        (2, {"snapshot": None}, "turn 2 has no snapshot"),
        (1, {"snapshot": RunSnapshot(epoch=1, tree_id=None, unavailable_why="too large", changes=None)}, "(too large)"),
        (1, {"snapshot": RunSnapshot(epoch=1, tree_id="0" * 40, unavailable_why=None, changes=ChangeSummary())}, "does not name notes.txt"),
        (2, {"snapshot": RunSnapshot(epoch=2, tree_id="0" * 40, unavailable_why=None, changes=ChangeSummary())}, "does not name words.txt"),
    ],
)  # fmt: skip
def test_each_run_that_is_not_as_promised_is_named(
    number: int, fields: dict[str, Any], said: str, good: list[TurnReport], tmp_path: Path
) -> None:
    """One line that names the turn and what is wrong."""
    one = good[number - 1]
    good[number - 1] = replace(one, run=one.run.model_copy(update=fields))
    assert said in "\n".join(demo.broken_promises(good, tmp_path))


def test_a_file_an_output_or_a_memory_that_is_missing_is_named(good: list[TurnReport], tmp_path: Path) -> None:
    """What the stream says is not believed where the disk can be looked at."""
    assert "was not written" in "\n".join(demo.broken_promises(good, tmp_path / "elsewhere"))
    silent = [good[0], replace(good[1], tool_output=""), good[2]]
    assert demo.broken_promises(silent, tmp_path) == ["the command's output did not arrive"]
    forgetful = [*good[:2], replace(good[2], text="turn 1, remembering 0 earlier turns")]
    assert "earlier turns are not remembered" in "\n".join(demo.broken_promises(forgetful, tmp_path))
    assert DemoReport("thread", forgetful, demo.broken_promises(forgetful, tmp_path)).as_json()["ok"] is False
