"""What owners and operators do while something fails, and which points each scenario is for.

A scenario gets a drill whose product is well, and ends when what it started has been asked for; rest is waited for afterwards.
What it needs beforehand it does before its `yield`: only then something begins to fail. `POINTS` says where it fails in turn.
`EXTRA` names what fails besides, so that the scenario comes about at all.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping

from crash.drill import LOOK_S, PAUSE_S, Cell, Drill, failing, ready
from turnkeeper.kit.failpoint import Mode, Phase, Point
from turnkeeper.kit.procs import kill

Scenario = Callable[[Drill], Iterator[None]]


def first_turn(drill: Drill) -> Iterator[None]:
    """A new conversation and its first message: the sandbox is made for it."""
    yield
    drill.wait_ended(drill.submit(drill.conversation()))


def next_turn(drill: Drill) -> Iterator[None]:
    """A second message goes on in the retained session."""
    thread = drill.begun()
    yield
    drill.wait_ended(drill.submit(thread))


def long_turn(drill: Drill) -> Iterator[None]:
    """A turn over several lease periods: renewals, marks and feeds."""
    yield
    drill.wait_ended(drill.submit(drill.conversation(), "/sleep 9"))


def longer_than_a_lease(drill: Drill) -> Iterator[None]:
    """A turn that outlives its first lease by renewals: the reaper looks at it, and is to look again later."""
    thread = drill.conversation()
    yield
    drill.wait_ended(drill.submit(thread, f"/sleep {PAUSE_S + 1:g}"))


def queue(drill: Drill) -> Iterator[None]:
    """Three messages at once in one conversation: one at a time, in order."""
    yield
    thread = drill.conversation()
    drill.wait_ended(*[run_id for _ in range(3) if (run_id := drill.try_submit(thread))])


def reload(drill: Drill) -> Iterator[None]:
    """The sandbox is gone between two turns: the session is reloaded into a new one."""
    thread = drill.begun()
    yield
    pair = drill.product.sandboxes().get(thread)
    if pair is not None:
        kill(pair[0], signal.SIGKILL)
    drill.wait_ended(drill.submit(thread))


def setup_fails(drill: Drill) -> Iterator[None]:
    """A setup command fails: stopped, abandoned, and the conversation stays usable."""
    yield
    drill.wait_ended(drill.submit(drill.conversation("drill-setup")))


def cancelled(drill: Drill) -> Iterator[None]:
    """A turn is cancelled in the middle of a tool."""
    yield
    run_id = drill.submit(drill.conversation(), "/sleep 30")
    drill.wait_received(run_id)
    drill.cancel(run_id)
    drill.wait_ended(run_id)


def closed(drill: Drill) -> Iterator[None]:
    """The conversation is closed after a turn: its sandbox is deleted and its Workdir free."""
    thread = drill.begun()
    yield
    drill.close(thread)


def closed_unused(drill: Drill) -> Iterator[None]:
    """A conversation was closed that never had a turn, and its Workdir is still held, as an older release may have left it:
    there is nothing to delete, and the reconciler ends the hold."""
    yield
    thread = drill.conversation()
    drill.close(thread)
    again = "UPDATE workdir_holds SET ended_at = NULL, ended_why = NULL WHERE runtime_scope_id = %s RETURNING 1"
    drill.product.rows(again, thread)
    held = "SELECT 1 FROM workdir_holds WHERE runtime_scope_id = %s AND ended_at IS NULL"
    end = time.monotonic() + 30
    while drill.product.rows(held, thread) and time.monotonic() < end:
        time.sleep(LOOK_S)


def ephemeral(drill: Drill) -> Iterator[None]:
    """The runtime is deleted after each turn, and the next message waits for that."""
    thread = drill.conversation("drill-ephemeral")
    yield
    first = drill.submit(thread)
    drill.wait_ended(first)
    if drill.status(first) == "completed":
        drill.wait_ended(drill.submit(thread))


def worker_dies(drill: Drill) -> Iterator[None]:
    """The worker is killed in the middle of a turn; its host finds it gone."""
    thread = drill.conversation()
    yield
    run_id = drill.submit(thread, "/sleep 10")
    if drill.wait_received(run_id):
        _signal_child(drill, run_id, signal.SIGKILL)
    drill.wait_ended(run_id)


def worker_stands_still(drill: Drill) -> Iterator[None]:
    """The worker stands still beyond its lease: the reaper ends the run, and its late words are refused."""
    thread = drill.conversation()
    yield
    run_id = drill.submit(thread, "/sleep 20")
    if drill.wait_received(run_id):
        _signal_child(drill, run_id, signal.SIGSTOP)
    try:
        drill.wait_ended(run_id)
    finally:
        _signal_child(drill, run_id, signal.SIGCONT)


def setup_dies(drill: Drill) -> Iterator[None]:
    """The worker ends before the admission: never delivered, and the next take is the barrier."""
    thread = drill.conversation()
    yield
    for _ in range(2):
        if run_id := drill.try_submit(thread):
            drill.wait_ended(run_id)


def given_back(drill: Drill) -> Iterator[None]:
    """A child ends before it accepts: the claim is released, and another child takes it."""
    yield
    drill.wait_ended(drill.submit(drill.conversation()))


def owner_is_full(drill: Drill) -> Iterator[None]:
    """An owner with room for one tree and two conversations: what the first leaves free is given to the second."""
    yield
    product = drill.product
    product.rows("UPDATE users SET tree_room = 1 WHERE uid = %s RETURNING uid", product.uid)
    try:
        first, second = drill.conversation(), drill.conversation()
        drill.wait_ended(drill.submit(first), drill.submit(second))
    finally:
        product.rows("UPDATE users SET tree_room = DEFAULT WHERE uid = %s RETURNING uid", product.uid)


def nobody_claims(drill: Drill) -> Iterator[None]:
    """A run waits for hosts of a provisioner that has none: after the bound it fails, and says so."""
    yield
    product, thread = drill.product, drill.conversation()
    product.rows("UPDATE conversations SET provisioner = 'elsewhere' WHERE thread_id = %s RETURNING 1", thread)
    run_id = drill.submit(thread)
    time.sleep(0.5)
    product.rows("UPDATE runs SET ready_at = ready_at - interval '11 minutes' WHERE id = %s RETURNING 1", run_id)
    drill.wait_ended(run_id)
    drill.close(thread)


def _signal_child(drill: Drill, run_id: str, number: signal.Signals) -> None:
    try:
        kill(drill.product.child(run_id), number)
    except AssertionError:  # it is gone already
        return


SCENARIOS: Mapping[str, Scenario] = {
    one.__name__: one
    for one in (
        first_turn, next_turn, long_turn, longer_than_a_lease, queue, reload, setup_fails, cancelled, closed, closed_unused, ephemeral,
        worker_dies, worker_stands_still, setup_dies, given_back, owner_is_full, nobody_claims,
    )
}  # fmt: skip

EXTRA: Mapping[str, tuple[Cell, ...]] = {
    "setup_dies": (Cell(Point.CALL_ADMIT, Phase.BEFORE, Mode.KILL),),
    "given_back": (Cell(Point.EFFECT_ACCEPT, Phase.BEFORE, Mode.RAISE),),
}


_BEFORE_ADMISSION = (
    Point.COMMIT_CLAIM, Point.COMMIT_PREPARE, Point.COMMIT_MANIFEST, Point.COMMIT_CONTAINER, Point.COMMIT_ACTIVATE,
    Point.CALL_WORK, Point.CALL_CLAIM, Point.CALL_PREPARE, Point.CALL_MANIFEST, Point.CALL_CONTAINER, Point.CALL_ENSURE,
    Point.CALL_ACTIVATE, Point.CALL_TAKE, Point.CALL_SESSION, Point.CALL_MANAGER_STATE, Point.EFFECT_SPAWN,
    Point.EFFECT_CHILD_RECORD, Point.EFFECT_HAND_OVER, Point.EFFECT_ACCEPT, Point.EFFECT_CREATE, Point.EFFECT_LAUNCH,
    Point.EFFECT_BARRIER, Point.EFFECT_AGENT_START, Point.EFFECT_SESSION,
)  # fmt: skip
_FROM_ADMISSION = (
    Point.COMMIT_ADMIT, Point.COMMIT_EVENTS, Point.COMMIT_SETTLE, Point.COMMIT_FINISH, Point.CALL_ADMIT,
    Point.CALL_PROMPT, Point.CALL_FOLLOW, Point.CALL_STORE_EVENTS, Point.CALL_SETTLE, Point.CALL_SNAPSHOT,
    Point.CALL_MANAGER_SNAPSHOT, Point.CALL_FINISH, Point.EFFECT_BEGUN, Point.EFFECT_PROMPT, Point.EFFECT_SETTLED,
    Point.EFFECT_RECEIPT,
)  # fmt: skip
_WARM = (
    Point.COMMIT_CLAIM, Point.COMMIT_PREPARE, Point.COMMIT_ACTIVATE, Point.CALL_ENSURE, Point.CALL_ACTIVATE, Point.CALL_TAKE,
    Point.CALL_SESSION, Point.EFFECT_BARRIER,
)  # fmt: skip
_CLEANUP = (
    Point.COMMIT_CLEANUP_LOOK, Point.COMMIT_CLEANUP_CLEAR, Point.CALL_DELETE, Point.EFFECT_FENCE, Point.EFFECT_END,
)  # fmt: skip

POINTS: Mapping[str, tuple[Point, ...]] = {
    "first_turn": (
        Point.COMMIT_CONVERSATION_CREATE, Point.COMMIT_SUBMIT, Point.EFFECT_SIGNAL, *_BEFORE_ADMISSION, *_FROM_ADMISSION,
    ),
    "next_turn": (*_WARM, *_FROM_ADMISSION),
    "long_turn": (
        Point.COMMIT_RENEW, Point.COMMIT_HOST_HEARTBEAT, Point.CALL_HEARTBEAT, Point.CALL_MARK,
        Point.CALL_FEED,
    ),
    "longer_than_a_lease": (Point.COMMIT_REAP_LATER,),
    "queue": (Point.COMMIT_SUBMIT, Point.COMMIT_CLAIM, Point.COMMIT_FINISH, Point.EFFECT_SIGNAL),
    "reload": (Point.EFFECT_END, Point.EFFECT_CREATE, Point.EFFECT_LAUNCH, Point.EFFECT_AGENT_START, Point.EFFECT_SESSION),
    "setup_fails": (Point.COMMIT_ABANDON, Point.CALL_SETUP, Point.CALL_STOP, Point.CALL_ABANDON, Point.CALL_FINISH),
    "cancelled": (Point.COMMIT_CANCEL, Point.CALL_CANCEL, Point.CALL_SIGNALS, Point.COMMIT_FINISH, Point.EFFECT_SIGNAL),
    "closed": (Point.COMMIT_CONVERSATION_CLOSE, *_CLEANUP),
    "closed_unused": (Point.COMMIT_RECONCILE_HOLD,),
    "ephemeral": (Point.COMMIT_FINISH, *_CLEANUP),
    "worker_dies": (Point.COMMIT_HOST_GONE, Point.COMMIT_VERDICT, *_CLEANUP),
    "worker_stands_still": (Point.COMMIT_REAP, Point.COMMIT_VERDICT),
    "setup_dies": (Point.COMMIT_HOST_GONE, Point.COMMIT_VERDICT, Point.CALL_TAKE, Point.EFFECT_BARRIER),
    "given_back": (Point.COMMIT_RELEASE, Point.CALL_RELEASE),
    "owner_is_full": (Point.COMMIT_DISPATCH, Point.COMMIT_FINISH),
    "nobody_claims": (Point.COMMIT_RECONCILE_FAIL,),
}  # fmt: skip


def cells() -> list[tuple[str, Cell]]:
    """The matrix: scenario × point × side × mode × {once, always}. An effect has no connection to drop, and to stand still
    again and again is no other failure than to stand still."""
    return [
        (name, Cell(point, phase, mode, once))
        for name, points in POINTS.items()
        for point in points
        for phase in Phase
        for mode in Mode
        for once in (True, False)
        if not (mode is Mode.DROP and point.value.startswith("effect.") and (point, phase) != _SIGNAL_LOST)
        if once or mode is not Mode.PAUSE
    ]


_SIGNAL_LOST = (Point.EFFECT_SIGNAL, Phase.BEFORE)


def reached_by(drill: Drill, name: str) -> set[tuple[Point, Phase]]:
    """Run the scenario with nothing failing but what it needs, and say where processes came."""
    plan = drill.product.plan
    steps = SCENARIOS[name](drill)
    next(steps)
    plan.forget()
    with failing(drill.product, *EXTRA.get(name, ())):
        carry_on(steps)
        time.sleep(1.5)
    ready(drill.product)
    return plan.reached


def carry_on(steps: Iterator[None]) -> None:
    """The part of a scenario in which something fails."""
    for _ in steps:
        raise AssertionError("a scenario yields once")
