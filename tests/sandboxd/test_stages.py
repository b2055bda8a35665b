"""An agent that leaves, at every stage and in every way."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sandboxd.manager import Manager, Worker, patience
from turnkeeper.kit import procs

FAULTS = {"exit0": 0, "exit1": 1, "segv": -11, "close-stdout": None}
ENDS_WITHIN_S = 2.0


def faulty(worker: Worker, stage: str, fault: str, **env: str) -> dict[str, str]:
    """The agent's environment."""
    return {
        "SCRIPTED_AGENT_FAULT": f"{stage}:{fault}",
        "SCRIPTED_AGENT_STDERR": "last words",
        "SCRIPTED_AGENT_LEDGER": str(worker.manager.home / "ledger"),
        **env,
    }


def check(failure: dict[str, Any], stage: str, fault: str, code: str) -> None:
    """Stage, wait status and stderr are told."""
    assert failure["stage"] == stage, failure
    assert failure["exit"] == FAULTS[fault], failure
    assert failure["code"] == code, failure
    assert "last words" in failure["stderr_tail"], failure


async def nothing_left(manager: Manager) -> None:
    """No process of the failed agent may live on."""
    for process in manager.below():
        assert procs.wait_gone(process, 2), process


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("stage", ["initialize", "new"])
async def test_leaves_while_opening(manager: Manager, stage: str, fault: str) -> None:
    """Case: F07. Before any prompt: never delivered, told within 2 s, nothing left."""
    worker = manager.activation()
    (await worker.take()).ok()
    begin = time.monotonic()
    answer = (await worker.session(env=faulty(worker, stage, fault))).ok()
    assert time.monotonic() - begin < patience(ENDS_WITHIN_S)
    check(answer["failure"], stage, fault, "agent_exited")
    await nothing_left(manager)
    (await worker.prompt("hello")).refused(409, "no_session")
    stopped = (await worker.call("POST", "/v1/stop")).ok()
    assert stopped["evidence"]["prompt_written"] is False
    assert not (manager.home / "ledger").exists()


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("method", ["load", "resume"])
async def test_leaves_while_reloading(manager: Manager, method: str, fault: str) -> None:
    """Case: F07. During load and resume the conversation cannot go on: `session_unavailable`, and the stage is named."""
    first = manager.activation()
    receipt = (await first.turn("hello"))[-1]["receipt"]
    await manager.restart()
    worker = first.next(boot_id=manager.boot_id)
    (await worker.take()).ok()
    begin = time.monotonic()
    withheld = {"SCRIPTED_AGENT_NO_RESUME": "1"} if method == "load" else {}
    env = faulty(worker, method, fault, **withheld)
    answer = (await worker.session(env=env, recorded=worker.recorded(receipt))).ok()
    assert time.monotonic() - begin < patience(ENDS_WITHIN_S)
    check(answer["failure"], method, fault, "session_unavailable")
    await nothing_left(manager)


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("stage", ["prompt", "permission"])
async def test_leaves_during_the_prompt(manager: Manager, stage: str, fault: str) -> None:
    """Case: F07. Delivered, outcome unknown: the stream ends with the failure within 2 s, there is no receipt."""
    worker = manager.activation()
    (await worker.take()).ok()
    assert (await worker.session(env=faulty(worker, stage, fault))).ok()["failure"] is None
    begin = time.monotonic()
    (await worker.prompt("/say before\n/ask Shall I?")).ok()
    events = await worker.events()
    assert time.monotonic() - begin < patience(ENDS_WITHIN_S)
    assert events[-1]["last"]
    check(events[-1]["failure"], stage, fault, "agent_exited")
    (await worker.call("GET", "/v1/receipt")).refused(404, "not_settled")
    await nothing_left(manager)
    evidence = (await worker.call("POST", "/v1/stop")).ok()["evidence"]
    assert (evidence["prompt_written"], evidence["receipt"]) == (True, None)
    assert len((manager.home / "ledger").read_text().splitlines()) == 1


@pytest.mark.parametrize("ending", ["/exit 3", "/crash", "/fault close-stdout"])
async def test_leaves_in_mid_turn_with_children(manager: Manager, ending: str) -> None:
    """Case: F07. A process that the agent left behind holds its stdout open; the end is noticed all the same."""
    worker = manager.activation()
    (await worker.take()).ok()
    assert (await worker.session()).ok()["failure"] is None
    begin = time.monotonic()
    (await worker.prompt(f"/say one\n/background sleep 1000\n/say two\n{ending}")).ok()
    events = await worker.events()
    assert time.monotonic() - begin < patience(ENDS_WITHIN_S)
    assert events[-1]["failure"]["stage"] == "prompt"
    assert "".join(e["data"]["text"] for e in events if e.get("kind") == "text").endswith("two")
    await nothing_left(manager)


async def test_command_that_is_not_there(manager: Manager) -> None:
    """Case: F07. Stage `start`, with a line that names the command."""
    worker = manager.activation()
    (await worker.take()).ok()
    failure = (await worker.session(command=["no-such-agent"])).ok()["failure"]
    assert (failure["stage"], failure["code"], failure["exit"]) == ("start", "agent_start_failed", None)
    assert "no-such-agent" in failure["text"]


@pytest.mark.parametrize("stage", ["initialize", "new"])
async def test_agent_that_never_answers(manager: Manager, stage: str) -> None:
    """Proves: R-07. Opening has a deadline."""
    worker = manager.activation()
    (await worker.take()).ok()
    failure = (await worker.session(env=faulty(worker, stage, "hang"), timeout_s=3)).ok()["failure"]
    assert (failure["stage"], failure["code"]) == (stage, "agent_start_failed")
    await nothing_left(manager)


async def test_load_that_never_answers(manager: Manager) -> None:
    """Proves: R-07. A load that hangs costs the conversation, within its deadline."""
    first = manager.activation()
    receipt = (await first.turn("hello"))[-1]["receipt"]
    await manager.restart()
    worker = first.next(boot_id=manager.boot_id)
    (await worker.take()).ok()
    env = faulty(worker, "resume", "hang")
    failure = (await worker.session(env=env, timeout_s=3, recorded=worker.recorded(receipt))).ok()["failure"]
    assert (failure["stage"], failure["code"]) == ("resume", "session_unavailable")
    await nothing_left(manager)


async def test_stderr_never_blocks_the_agent(manager: Manager) -> None:
    """Case: F07. A megabyte on stderr is drained; the last 8 KiB are kept."""
    worker = manager.activation()
    events = await worker.turn("/stderr 1000000\n/say still here\n/exit 1")
    assert "still here" in str(events)
    tail = events[-1]["failure"]["stderr_tail"]
    assert 0 < len(tail.encode()) <= 8192
    assert tail.endswith("e" * 79 + "\n")


async def test_agent_that_closes_its_stdin(manager: Manager) -> None:
    """Case: F07. It stays and will never hear an answer: the turn ends within 2 s, and nothing of it is left."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.session(command=[sys.executable, str(Path(__file__).parent / "agents" / "wide.py")])).ok()
    begin = time.monotonic()
    (await worker.prompt("close-stdin")).ok()
    failure = (await worker.events())[-1]["failure"]
    assert time.monotonic() - begin < patience(ENDS_WITHIN_S)
    assert (failure["code"], failure["exit"]) == ("agent_exited", None)
    await nothing_left(manager)
