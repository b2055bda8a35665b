"""Failpoints: what they do when armed, that *once* is once over all processes, and that nothing arms a production start."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from turnkeeper.kit import failpoint
from turnkeeper.kit.failpoint import Phase, Plan, Point

ROOT = Path(__file__).parents[2]
REACH = (
    "from turnkeeper.kit import failpoint; from turnkeeper.kit.failpoint import Point\n"
    "print('begun', flush=True)\n"
    "print(failpoint.before(Point.CALL_ADMIT), failpoint.after(Point.CALL_ADMIT), flush=True)\n"
)


@pytest.fixture(name="plan")
def _plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan"
    file.touch()
    return file


def start(plan: Path | str, code: str = REACH, **more: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-X", f"{failpoint.OPTION}={plan}", "-I", "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload,no-any-return] # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType, reportReturnType]


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def write(plan: Path, line: str) -> None:
    with plan.open("a") as file:
        file.write(f"{line}\n")


def wait_for(look: Callable[[], bool], timeout_s: float = 20) -> None:
    end = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_unarmed_points_do_nothing_and_are_noted(plan: Path) -> None:
    """What was reached is known, so that a point without a scenario can be found."""
    assert ended(start(plan))[:2] == (0, "begun\nFalse False\n")
    assert plan.read_text().splitlines() == ["reached call.POST:admit before", "reached call.POST:admit after"]


def test_drop_is_the_callers_to_do(plan: Path) -> None:
    """The answer says so, on the side that was armed."""
    write(plan, "arm 1 call.POST:admit after drop once")
    assert ended(start(plan))[:2] == (0, "begun\nFalse True\n")
    assert ended(start(plan))[:2] == (0, "begun\nFalse False\n"), "once is once over all processes"
    write(plan, "arm 2 call.POST:admit before drop always")
    assert ended(start(plan))[1] == "begun\nTrue False\n"
    assert ended(start(plan))[1] == "begun\nTrue False\n"
    write(plan, "disarm 2")
    assert ended(start(plan))[1] == "begun\nFalse False\n"


def test_raise_names_the_place(plan: Path) -> None:
    """As a defect there would."""
    write(plan, "arm 1 call.POST:admit before raise once")
    status, _, err = ended(start(plan))
    assert status == 1
    assert err.splitlines()[-1].endswith("FailpointError: call.POST:admit before")


def test_kill_ends_the_process_at_once(plan: Path) -> None:
    """By SIGKILL, which nothing can catch; the hit is on record before."""
    write(plan, "arm 7 call.POST:admit before kill once")
    process = start(plan)
    assert ended(process)[:2] == (-signal.SIGKILL, "begun\n")
    assert f"hit 7 {process.pid}" in plan.read_text().splitlines()


def test_pause_stops_the_whole_process_until_it_is_let_go_on(plan: Path) -> None:
    """By SIGSTOP: all of its threads stand still, as after a suspend."""
    write(plan, "arm 1 call.POST:admit before pause once")
    process = start(plan)
    state = Path(f"/proc/{process.pid}/stat")
    wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
    assert f"hit 1 {process.pid}" in plan.read_text()
    process.send_signal(signal.SIGCONT)
    assert ended(process)[:2] == (0, "begun\nFalse False\n")


def test_a_plan_may_come_by_descriptor(plan: Path) -> None:
    """As the sandbox manager gets it, which sees none of our files; what it starts does not inherit it."""
    write(plan, "arm 1 call.POST:admit after drop once")
    fd = os.open(plan, os.O_RDWR | os.O_APPEND)
    try:
        assert ended(start(f"fd:{fd}", pass_fds=(fd,)))[1] == "begun\nFalse True\n"
        code = (
            "import subprocess; from turnkeeper.kit import failpoint\n"
            f"print(failpoint.interpreter_options(9), subprocess.run(['test', '-e', '/proc/self/fd/{fd}']).returncode)"
        )
        assert ended(start(f"fd:{fd}", code, pass_fds=(fd,)))[1] == "['-X', 'turnkeeper_failpoints=fd:9'] 1\n"
    finally:
        os.close(fd)


def test_processes_of_a_drill_share_it(plan: Path) -> None:
    """Two processes at one point at the same time: one of them fails."""
    write(plan, "arm 1 call.POST:admit before kill once")
    statuses = sorted(ended(process)[0] for process in [start(plan) for _ in range(4)])
    assert statuses == [-signal.SIGKILL, 0, 0, 0]


def test_nothing_but_the_interpreters_own_option_arms_a_start(plan: Path, tmp_path: Path) -> None:
    """No environment variable, no setting, no installed command: a production start cannot be armed."""
    write(plan, "arm 1 call.POST:admit before kill always")
    names = ("TURNKEEPER_FAILPOINTS", "PYTHONXOPTIONS", "PYTHON_XOPTIONS", failpoint.OPTION, failpoint.OPTION.upper())
    env = {**os.environ, **dict.fromkeys(names, str(plan))}
    done = subprocess.run(
        [sys.executable, "-c", REACH], env=env, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout == "begun\nFalse False\n"
    assert "reached" not in plan.read_text()
    command = Path(sys.executable).with_name("turnkeeper")
    assert "-X" not in command.read_text().splitlines()[0]
    assert failpoint.plan() is None
    assert failpoint.interpreter_options() == []
    assert failpoint.of_commit("claim") is None
    assert failpoint.of_call("POST admit") is None


def test_every_transaction_that_takes_locks_has_a_point() -> None:
    """`docs/lock-order.md` lists them. `ready` is rolled back: it commits nothing."""
    page = (ROOT / "docs" / "lock-order.md").read_text()
    named = set(re.findall(r"^\| `([a-z._]+)` \|", page, re.MULTILINE)) - {"ready"}
    assert named == {point.value.removeprefix("commit.") for point in Point if point.value.startswith("commit.")}


def test_every_effect_is_placed_on_both_sides() -> None:
    """A point of the list that no code reaches would be no point."""
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    for point in Point:
        if point.value.startswith("effect."):
            for phase in ("before", "after"):
                assert f"failpoint.{phase}(Point.{point.name})" in source, f"{phase} {point.name}"


def test_a_torn_or_foreign_line_is_no_order(plan: Path) -> None:
    """Lines that are being written are read when they are whole."""
    plan.write_text("arm 1\nnonsense\narm 2 call.POST:admit before dr")
    seen = Plan(str(plan))
    try:
        assert not seen.reach(Point.CALL_ADMIT, Phase.BEFORE)
    finally:
        os.close(seen.fd)
