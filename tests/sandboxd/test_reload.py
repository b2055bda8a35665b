"""Continue, reload, open anew, or none of these: by evidence."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxd.manager import Manager, Worker, said

ACTIVATION = "00000000-0000-7000-8000-00000000000a"


async def settled(manager: Manager, **session: Any) -> tuple[Worker, dict[str, Any]]:
    """One settled turn, and then a manager that knows nothing of it."""
    first = manager.activation()
    receipt = (await first.turn("hello", **session))[-1]["receipt"]
    await manager.restart()
    return first, receipt


async def reopen(
    manager: Manager, first: Worker, receipt: dict[str, Any], **session: Any
) -> tuple[Worker, dict[str, Any]]:
    """The next activation's answer to `session`."""
    worker = first.next(boot_id=manager.boot_id)
    (await worker.take()).ok()
    recorded = {**worker.recorded(receipt), **session.pop("recorded", {})}
    return worker, (await worker.session(recorded=recorded, **session)).ok()


@pytest.mark.parametrize("withheld", ["", "SCRIPTED_AGENT_NO_RESUME"])
async def test_reload(manager: Manager, withheld: str) -> None:
    """Proves: R-07. A settled session is loaded into a new process, and what is replayed belongs to no turn."""
    first, receipt = await settled(manager)
    worker, answer = await reopen(manager, first, receipt, env={withheld: "1"} if withheld else {})
    assert (answer["mode"], answer["native_session"], answer["native_turn"]) == (
        "reloaded",
        receipt["native_session"],
        1,
    )
    (await worker.prompt("more")).ok()
    events = await worker.events()
    assert said(events) == "turn 2, remembering 1 earlier turns: more"
    assert events[-1]["receipt"]["native_turn"] == 2


async def test_agent_that_cannot_load(manager: Manager) -> None:
    """Proves: R-07. Without load and resume the conversation is lost."""
    first, receipt = await settled(manager)
    env = {"SCRIPTED_AGENT_NO_RESUME": "1", "SCRIPTED_AGENT_NO_LOAD": "1"}
    _, answer = await reopen(manager, first, receipt, env=env)
    assert answer["failure"]["code"] == "session_unavailable"
    assert answer["failure"]["text"] == "not_loadable"
    assert manager.below() == []


def journal_path(manager: Manager) -> Path:
    """Where it lies."""
    return manager.home / ".turnkeeper" / "journal"


def _symlink(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def _folder_symlink(path: Path) -> None:
    folder = path.parent
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _append(text: str) -> Callable[[Path], None]:
    def forge(path: Path) -> None:
        with path.open("a") as file:
            file.write(text)

    return forge


FORGED: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "symlink": _symlink,
    "folder is a symlink": _folder_symlink,
    "fifo": _fifo,
    "too large": _append("x" * 1_100_000),
    "begun and not settled": _append(f'begun 2 {ACTIVATION} "s"\n'),
    "another turn": _append(f'begun 7 {ACTIVATION} "s"\nsettled 7 {ACTIVATION} "s"\n'),
    "garbage": _append("settled\n"),
    "other session": _append(f'begun 1 {ACTIVATION} "s"\nsettled 1 {ACTIVATION} "s"\n'),
    "empty": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("forgery", list(FORGED))
async def test_journal_that_does_not_agree(manager: Manager, forgery: str) -> None:
    """Proves: R-07. Anything but a journal that equals the record is no evidence, and nothing is started or waited for."""
    first, receipt = await settled(manager)
    FORGED[forgery](journal_path(manager))
    _, answer = await reopen(manager, first, receipt)
    assert answer["failure"]["code"] == "session_unavailable", answer
    assert manager.below() == []


async def test_torn_last_line_says_nothing(manager: Manager) -> None:
    """Proves: R-07. A crash in the middle of an append is the same as none; the next turn drops the rest."""
    first, receipt = await settled(manager)
    _append("begun 2 0000")(journal_path(manager))
    worker, answer = await reopen(manager, first, receipt)
    assert answer["mode"] == "reloaded"
    (await worker.prompt("more")).ok()
    await worker.events()
    lines = journal_path(manager).read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["begun", "1"], ["settled", "1"], ["begun", "2"], ["settled", "2"]]


async def test_cut_turn_is_never_loaded(manager: Manager) -> None:
    """Proves: R-07, R-03. The manager died in mid-turn: no process is started on that session, so that none can run it again."""
    first = manager.activation()
    receipt = (await first.turn("one"))[-1]["receipt"]
    second = first.next()
    (await second.take()).ok()
    (await second.session(recorded=first.recorded(receipt))).ok()
    (await second.prompt("/say two\n/hang")).ok()
    await manager.restart()
    _, answer = await reopen(manager, second, receipt)
    assert answer["failure"]["code"] == "session_unavailable"
    assert answer["failure"]["text"] == "turn_cut"
    assert manager.below() == []


async def test_agent_process_that_died_between_turns_is_reloaded(manager: Manager) -> None:
    """Proves: R-07. The recorded process is gone, the journal agrees: a new one."""
    first = manager.activation()
    receipt = (await first.turn("one"))[-1]["receipt"]
    os.kill(receipt["agent"]["pid"], 9)
    _, answer = await reopen(manager, first, receipt)
    assert answer["mode"] == "reloaded"
    assert answer["agent"] != receipt["agent"]


@pytest.mark.parametrize(
    "change",
    [{"settled_generation": "other"}, {"settled_boot_id": ACTIVATION}, {"agent_start_ticks": 1}, {"agent_pid": 1}],
)
async def test_evidence_that_differs_is_not_continued(manager: Manager, change: dict[str, Any]) -> None:
    """Proves: R-07. Each part of the evidence counts: with another one the live process is ended and a new one loads."""
    first = manager.activation()
    receipt = (await first.turn("one"))[-1]["receipt"]
    _, answer = await reopen(manager, first, receipt, recorded=change)
    assert answer["mode"] == "reloaded"
    assert answer["agent"] != receipt["agent"]
    assert len(manager.below()) == 2  # keeper and agent; the old pair is dead


@pytest.mark.parametrize("recorded", [{"native_turn": 2}, {"native_turn": 0}])
async def test_turn_that_differs_is_unavailable(manager: Manager, recorded: dict[str, Any]) -> None:
    """Proves: R-07. Supervisor and database count other turns: nothing is continued and nothing loaded."""
    first = manager.activation()
    receipt = (await first.turn("one"))[-1]["receipt"]
    _, answer = await reopen(manager, first, receipt, recorded=recorded)
    assert answer["failure"]["code"] == "session_unavailable"


async def test_session_without_a_turn_is_opened_anew(manager: Manager) -> None:
    """Proves: R-07. Native turn 0 and no `begun`: most agents cannot load such a session, and there is nothing to lose."""
    first = manager.activation()
    (await first.take()).ok()
    one = (await first.session()).ok()
    (await first.call("POST", "/v1/stop")).ok()
    second = first.next()
    (await second.take()).ok()
    two = (await second.session(recorded={"native_session": one["native_session"], "native_turn": 0})).ok()
    assert two["mode"] == "new"
    assert two["native_session"] != one["native_session"]


async def test_new_session_per_turn(manager: Manager) -> None:
    """Proves: R-07. Such an agent remembers nothing, and its turns count on all the same."""
    first = manager.activation()
    receipt = (await first.turn("one", new_session_per_turn=True))[-1]["receipt"]
    worker, answer = await reopen(manager, first, receipt, new_session_per_turn=True)
    assert (answer["mode"], answer["native_turn"]) == ("new", 1)
    (await worker.prompt("two")).ok()
    events = await worker.events()
    assert said(events) == "turn 1, remembering 0 earlier turns: two"
    assert events[-1]["receipt"]["native_turn"] == 2


async def test_restarted_manager_knows_nothing(manager: Manager) -> None:
    """Proves: F-07. Receipts are gone with the boot id that they name, and tokens of the older start are refused."""
    first, _ = await settled(manager)
    (await first.call("GET", "/v1/receipt")).refused(409, "boot_id")
    worker = first.next(boot_id=manager.boot_id)
    assert (await worker.take()).ok()["previous"] == {
        "activation": None,
        "run": None,
        "prompt_written": False,
        "receipt": None,
    }
