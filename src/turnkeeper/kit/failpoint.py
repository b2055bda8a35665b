"""Failpoints: places where a drill makes a process fail, before and after whatever the protocol depends on.

A point is reached in two phases: *before* a commit, call or effect, and *after* it. What then happens is said by a plan, a
text file that grows while the drill runs, one fact a line:

    arm ID POINT PHASE MODE TIMES     written by the drill; MODE is raise, drop, kill or pause, TIMES is once or always
    disarm ID                         written by the drill
    go ID                             written by the drill: a paused pid 1 may go on
    forget                            written by the drill: what was reached is noted again
    reached POINT PHASE               written by a process, the first time that it comes there
    hit ID PID                        written by a process that is about to fail as ID says

All processes of a drill share the file, so that *once* is once, however often a killed process starts again.

Nothing can arm a production start: a plan comes by the interpreter's own option `-X turnkeeper_failpoints=FILE` alone, which
no setting, no environment variable and no installed command gives. Unarmed, a point costs one comparison with None.
Standard library only, and little of it: the sandbox manager imports it before its first answer.
"""

import fcntl
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

OPTION: Final = "turnkeeper_failpoints"
_GO_LOOK_S: Final = 0.02
_LINE_BYTES_MAX: Final = 4096


class Point(StrEnum):
    """Every place. `commit.*`: a transaction of the control plane, by its name. `call.*`: one HTTP call, in the process that
    makes it. `effect.*`: what a process does outside the database, or says to another one."""

    COMMIT_CONVERSATION_CREATE = "commit.conversation.create"
    COMMIT_SUBMIT = "commit.submit"
    COMMIT_CANCEL = "commit.cancel"
    COMMIT_CONVERSATION_CLOSE = "commit.conversation.close"
    COMMIT_CLAIM = "commit.claim"
    COMMIT_RENEW = "commit.renew"
    COMMIT_PREPARE = "commit.prepare"
    COMMIT_MANIFEST = "commit.manifest"
    COMMIT_CONTAINER = "commit.container"
    COMMIT_ACTIVATE = "commit.activate"
    COMMIT_ADMIT = "commit.admit"
    COMMIT_SETTLE = "commit.settle"
    COMMIT_ABANDON = "commit.abandon"
    COMMIT_EVENTS = "commit.events"
    COMMIT_HOST_HEARTBEAT = "commit.host.heartbeat"
    COMMIT_RELEASE = "commit.release"
    COMMIT_FINISH = "commit.finish"
    COMMIT_DISPATCH = "commit.dispatch"
    COMMIT_REAP = "commit.reap"
    COMMIT_REAP_LATER = "commit.reap.later"
    COMMIT_HOST_GONE = "commit.host.gone"
    COMMIT_VERDICT = "commit.verdict"
    COMMIT_CLEANUP_LOOK = "commit.cleanup.look"
    COMMIT_CLEANUP_CLEAR = "commit.cleanup.clear"
    COMMIT_RECONCILE_FAIL = "commit.reconcile.fail"
    COMMIT_RECONCILE_HOLD = "commit.reconcile.hold"

    CALL_WORK = "call.GET:work"
    CALL_CLAIM = "call.POST:claim"
    CALL_RELEASE = "call.POST:release"
    CALL_HEARTBEAT = "call.POST:heartbeat"
    """A renewal of a worker, and the heartbeat of a host."""
    CALL_SIGNALS = "call.GET:signals"
    CALL_PREPARE = "call.POST:prepare"
    CALL_MANIFEST = "call.POST:manifest"
    CALL_CONTAINER = "call.POST:container"
    CALL_ACTIVATE = "call.POST:activate"
    CALL_ADMIT = "call.POST:admit"
    CALL_SETTLE = "call.POST:settle"
    CALL_ABANDON = "call.POST:abandon"
    CALL_STORE_EVENTS = "call.POST:events"
    CALL_FINISH = "call.POST:finish"
    CALL_ENSURE = "call.POST:ensure"
    CALL_MARK = "call.GET:mark"
    CALL_TAKE = "call.POST:take"
    CALL_SETUP = "call.POST:setup"
    CALL_SESSION = "call.POST:session"
    CALL_PROMPT = "call.POST:prompt"
    CALL_FOLLOW = "call.GET:events"
    CALL_FEED = "call.POST:feed"
    CALL_CANCEL = "call.POST:cancel"
    CALL_STOP = "call.POST:stop"
    CALL_SNAPSHOT = "call.POST:snapshot"
    CALL_MANAGER_STATE = "call.GET:state"
    CALL_MANAGER_SNAPSHOT = "call.GET:snapshot"
    CALL_DELETE = "call.DELETE:sandboxes"

    EFFECT_SIGNAL = "effect.signal"
    """The control plane tells that something was committed."""
    EFFECT_SPAWN = "effect.spawn"
    """The host starts a child."""
    EFFECT_CHILD_RECORD = "effect.child_record"
    """The host remembers which child gets which attempt."""
    EFFECT_HAND_OVER = "effect.hand_over"
    """The host gives the turn to its child."""
    EFFECT_ACCEPT = "effect.accept"
    """The child takes it."""
    EFFECT_FENCE = "effect.fence"
    """The provisioner makes a cleanup's lease generation durable."""
    EFFECT_CREATE = "effect.create"
    """The provisioner has the backend make a sandbox."""
    EFFECT_LAUNCH = "effect.launch"
    """The local backend gives a launcher its orders; before: it is started and on record."""
    EFFECT_END = "effect.end"
    """The provisioner has the backend end a sandbox."""
    EFFECT_BARRIER = "effect.barrier"
    """The manager kills what an older activation left."""
    EFFECT_AGENT_START = "effect.agent_start"
    EFFECT_SESSION = "effect.session"
    """The manager opens or reloads the native session."""
    EFFECT_BEGUN = "effect.begun"
    """The manager's journal: a prompt is about to be written."""
    EFFECT_PROMPT = "effect.prompt"
    """The manager writes the prompt to the agent."""
    EFFECT_SETTLED = "effect.settled"
    """The manager's journal: the prompt got its response."""
    EFFECT_RECEIPT = "effect.receipt"
    """The manager's stream tells the settlement."""


class Phase(StrEnum):
    """On which side of it."""

    BEFORE = "before"
    AFTER = "after"


class Mode(StrEnum):
    """How to fail."""

    RAISE = "raise"
    """`FailpointError`, as a defect there would."""
    DROP = "drop"
    """The connection of the commit or call ends there; the caller does it. Not for effects."""
    KILL = "kill"
    """This process ends at once, as by SIGKILL."""
    PAUSE = "pause"
    """This process stands still, as by SIGSTOP, until the drill lets it go on."""


class FailpointError(RuntimeError):
    """What a failpoint raises: a defect of ours at that place."""


@dataclass(frozen=True)
class _Arm:
    id: str
    mode: Mode
    once: bool


class Plan:
    """The plan of a drill as one process sees it."""

    def __init__(self, place: str) -> None:
        """`place`: a path, or `fd:N` for a descriptor that was inherited. `OSError` where it is neither."""
        self._fd = int(place[3:]) if place.startswith("fd:") else os.open(place, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        os.set_inheritable(self._fd, False)
        self.place = place
        self._lock = threading.Lock()
        self._read_bytes = 0
        self._rest = b""
        self._arms: dict[tuple[str, str], _Arm] = {}
        self._hits: set[str] = set()
        self._gone_on: set[str] = set()
        self._reached: set[tuple[Point, Phase]] = set()

    @property
    def fd(self) -> int:
        """The plan's descriptor: to be handed on to a sandbox, and kept open by whoever closes what it does not know."""
        return self._fd

    def reach(self, point: Point, phase: Phase) -> bool:
        """Fail here if the plan says so. True: the caller is to drop its connection."""
        with self._lock:
            arm = self._look(point, phase)
        if arm is None:
            return False
        match arm.mode:
            case Mode.RAISE:
                raise FailpointError(f"{point} {phase}")
            case Mode.DROP:
                return True
            case Mode.KILL:
                _end_at_once()
            case Mode.PAUSE:
                self._pause(arm.id)
        return False

    def _look(self, point: Point, phase: Phase) -> _Arm | None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            self._read()
            if (point, phase) not in self._reached:
                self._reached.add((point, phase))
                self._write(f"reached {point.value} {phase.value}")
            arm = self._arms.get((point.value, phase.value))
            if arm is None or (arm.once and arm.id in self._hits):
                return None
            self._write(f"hit {arm.id} {os.getpid()}")
            self._hits.add(arm.id)
            return arm
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def _read(self) -> None:
        size = os.fstat(self._fd).st_size
        while self._read_bytes < size:
            data = os.pread(self._fd, 65536, self._read_bytes)
            if not data:
                return
            self._read_bytes += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line.decode().split(" "))

    def _take(self, words: list[str]) -> None:
        match words:
            case ["arm", name, point, phase, mode, times]:
                self._arms[point, phase] = _Arm(name, Mode(mode), once=times == "once")
            case ["disarm", name]:
                self._arms = {place: arm for place, arm in self._arms.items() if arm.id != name}
            case ["hit", name, _]:
                self._hits.add(name)
            case ["forget"]:
                self._reached.clear()
            case ["go", name]:
                self._gone_on.add(name)
            case _:
                pass

    def _write(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode()[:_LINE_BYTES_MAX])

    def _pause(self, name: str) -> None:
        if os.getpid() != 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        # Pid 1 of a sandbox cannot stop itself: the drill stops it from outside when it reads of the hit, and says `go`.
        while name not in self._gone_on:
            time.sleep(_GO_LOOK_S)
            with self._lock:
                self._read()


def _end_at_once() -> None:
    if os.getpid() != 1:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)  # pid 1 of a sandbox cannot kill itself; that it ends has the same effect


def _given() -> Plan | None:
    # CPython's documented place of `-X` options, in spite of its name.
    place = sys._xoptions.get(OPTION)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return Plan(place) if isinstance(place, str) else None


_plan: Plan | None = _given()
_COMMITS: Final = {point.value.removeprefix("commit."): point for point in Point if point.value.startswith("commit.")}
_CALLS: Final = {point.value.removeprefix("call."): point for point in Point if point.value.startswith("call.")}


def plan() -> Plan | None:
    """The plan that this process was started with."""
    return _plan


def before(point: Point) -> bool:
    """`point` is about to happen. True: the caller is to drop its connection instead."""
    return _plan is not None and _plan.reach(point, Phase.BEFORE)


def after(point: Point) -> bool:
    """`point` has happened. True: the caller is to drop its connection, so that its answer is lost."""
    return _plan is not None and _plan.reach(point, Phase.AFTER)


def of_commit(transaction: str) -> Point | None:
    """The point of a transaction, by its name; None where no plan is given or the protocol does not depend on it."""
    return None if _plan is None else _COMMITS.get(transaction)


def of_call(operation: str) -> Point | None:
    """The point of a call, by method and last word of its path; None as in `of_commit`."""
    return None if _plan is None else _CALLS.get(operation.replace(" ", ":"))


def interpreter_options(fd: int | None = None) -> list[str]:
    """What a process of ours that we start is started with, before its module: nothing, but in a drill. `fd`: the number
    under which it inherits the plan's descriptor."""
    if _plan is None:
        return []
    return ["-X", f"{OPTION}={_plan.place if fd is None else f'fd:{fd}'}"]
