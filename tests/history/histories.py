"""A good history by hand, small enough to be read, with a conversation for each way that a turn can go; and edits of it.

Times are seconds after `ZERO`; `now` is 1000.

| conversation | what happened |
|---|---|
| alpha | a1: released, then carried out in the attempt after it; a2: carried out in the same process; a3 is ready |
| beta | b1: carried out; b2: admitted, its lease expired, so the conversation is lost; b3 had waited. Its cleanup is pending |
| gamma | ephemeral: g1 was carried out, and its end waits for the fence |
| delta | d1 is at work, and so is its subagent's run c1 in the conversation child |
| epsilon | e1: abandoned before its admission; e2: quarantined, the verdict is awaited |
| zeta | z1: admitted, and the verdict found proof that its prompt was never written |
| eta | h1: its session was not available, so the conversation is lost without an admission |
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from turnkeeper.domain.history.facts import (
    ActivationFact,
    AttemptFact,
    ConversationFact,
    EventsFact,
    History,
    HoldFact,
    LedgerEntry,
    MembershipFact,
    MessageFact,
    OwnerFact,
    ProcessSeen,
    RunFact,
    SnapshotFact,
    WorkspaceFact,
)

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
OWNER = "owner"


def at(seconds: float) -> datetime:
    """A moment."""
    return ZERO + timedelta(seconds=seconds)


def maybe(seconds: float | None) -> datetime | None:
    """A moment, or none."""
    return None if seconds is None else at(seconds)


def conversation(name: str, last_seq: int, **more: Any) -> ConversationFact:
    """An open chat that was touched at 900."""
    values: dict[str, Any] = {"kind": "chat", "runtime_scope_id": name, "state": "open", "queue_paused": False,
              "runtime_policy": "retained", "updated_at": at(900), "dropped_before": 0}  # fmt: skip
    return ConversationFact(thread_id=name, uid=OWNER, last_seq=last_seq, **{**values, **more})


def run(name: str, thread: str, status: str, created: float, ended: float | None = None, **more: Any) -> RunFact:
    """A run whose prompt is its own name."""
    values: dict[str, Any] = {"kind": "chat", "runtime_scope_id": thread, "root_run_id": name, "depth": 0,
              "queue_position": int(created), "cancel_requested_at": None, "runtime_cleanup_pending": False,
              "ready_at": None, "prompt": name}  # fmt: skip
    return RunFact(
        id=name, thread_id=thread, uid=OWNER, status=status, created_at=at(created), ended_at=maybe(ended),
        **{**values, **more},
    )  # fmt: skip


def attempt(
    run_id: str, number: int, generation: int, claimed: float, ended: float | None, outcome: str | None, **more: Any
) -> AttemptFact:
    """An attempt named after its run and number, accepted a second after its claim."""
    values: dict[str, Any] = {
        "accepted_at": at(claimed + 1),
        "last_heartbeat_at": None,
        "lease_expires_at": at(claimed + 120),
    }
    return AttemptFact(
        id=f"{run_id}.{number}", run_id=run_id, attempt_no=number, lease_generation=generation, claimed_at=at(claimed),
        ended_at=maybe(ended), outcome=outcome, **{**values, **more},
    )  # fmt: skip


def activation(
    attempt_id: str, thread: str, fence: int, state: str, created: float, admitted: float | None, ended: float | None,
    **more: Any,
) -> ActivationFact:  # fmt: skip
    """An activation named after its attempt."""
    settled = state == "settled"
    values: dict[str, Any] = {"settled_at": maybe(ended) if settled else None, "outcome": "completed" if settled else None,
              "native_turn": None, "epoch": None, "id": f"in-{attempt_id}"}  # fmt: skip
    return ActivationFact(
        membership_id=f"m-{thread}", run_id=attempt_id.partition(".")[0], attempt_id=attempt_id,
        fence=fence, state=state, created_at=at(created), admitted_at=maybe(admitted), ended_at=maybe(ended),
        **{**values, **more},
    )  # fmt: skip


def membership(thread: str, state: str, fence: int, native_turn: int = 0, **more: Any) -> MembershipFact:
    """A membership of the conversation's own scope."""
    values: dict[str, Any] = {"shared_workspace_id": f"w-{thread}", "activation_id": None, "lost_reason": None}
    return MembershipFact(
        id=f"m-{thread}", thread_id=thread, state=state, fence=fence, native_turn=native_turn, **{**values, **more}
    )


def events(
    thread: str, run_id: str, first: int, last: int, times: tuple[float, float], by: str | None = None,
    *, end: bool = False,
) -> EventsFact:  # fmt: skip
    """A span of events."""
    return EventsFact(
        thread_id=thread, run_id=run_id, attempt_id=by, is_end=end, first_seq=first, last_seq=last,
        first_at=at(times[0]), last_at=at(times[1]),
    )  # fmt: skip


def messages(run_id: str, thread: str, delivery: str, *, output: bool = False) -> tuple[MessageFact, ...]:
    """The owner's message of a run, and the assistant's."""
    asked = MessageFact(f"ask-{run_id}", thread, run_id, "owner", delivery)
    return (asked, MessageFact(f"say-{run_id}", thread, run_id, "assistant", None)) if output else (asked,)


def hold(scope: str) -> HoldFact:
    """The hold of a conversation's own directory."""
    return HoldFact(f"hold-{scope}", OWNER, f"conversations/{scope}", scope, None)


CHILD: dict[str, Any] = {"kind": "subagent", "runtime_scope_id": "delta"}

GOOD = History(
    now=at(1000),
    owners=(OwnerFact(OWNER, tree_room=4, live_trees=2, last_end_at=at(930)),),
    conversations=(
        conversation("alpha", 18),
        conversation("beta", 14, state="lost"),
        conversation("gamma", 5, runtime_policy="ephemeral"),
        conversation("delta", 4),
        conversation("child", 3, **CHILD),
        conversation("epsilon", 8),
        conversation("zeta", 4),
        conversation("eta", 4, state="lost"),
    ),
    runs=(
        run("a1", "alpha", "completed", 10, 20),
        run("a2", "alpha", "completed", 25, 40),
        run("a3", "alpha", "pending", 900, ready_at=at(900)),
        run("b1", "beta", "completed", 100, 120),
        run("b2", "beta", "failed", 126, 260, runtime_cleanup_pending=True),
        run("b3", "beta", "failed", 127, 261),
        run("g1", "gamma", "completed", 300, 320, runtime_cleanup_pending=True),
        run("d1", "delta", "running", 940),
        run("c1", "child", "running", 950, root_run_id="d1", depth=1, **CHILD),
        run("e1", "epsilon", "failed", 500, 510),
        run("e2", "epsilon", "failed", 600, 930),
        run("z1", "zeta", "failed", 700, 710),
        run("h1", "eta", "failed", 800, 810),
    ),
    attempts=(
        attempt("a1", 1, 1, 10, 11, "released", accepted_at=None),
        attempt("a1", 2, 2, 12, 20, "completed", last_heartbeat_at=at(15)),
        attempt("a2", 1, 3, 30, 40, "completed"),
        attempt("b1", 1, 4, 110, 120, "completed"),
        attempt("b2", 1, 5, 128, 260, "lease_expired"),
        attempt("g1", 1, 6, 301, 320, "completed"),
        attempt("e1", 1, 7, 501, 510, "failed"),
        attempt("e2", 1, 8, 601, 930, "lease_expired", last_heartbeat_at=at(800)),
        attempt("z1", 1, 9, 701, 710, "failed"),
        attempt("h1", 1, 10, 801, 810, "failed"),
        attempt("d1", 1, 11, 941, None, None, last_heartbeat_at=at(990)),
        attempt("c1", 1, 12, 951, None, None),
    ),
    workspaces=(
        WorkspaceFact("w-alpha", "alpha", 2),
        WorkspaceFact("w-beta", "beta", 1),
        WorkspaceFact("w-gamma", "gamma", 1),
        WorkspaceFact("w-delta", "delta", 0),
        WorkspaceFact("w-epsilon", "epsilon", 0),
        WorkspaceFact("w-zeta", "zeta", 0),
        WorkspaceFact("w-eta", "eta", 0),
    ),
    memberships=(
        membership("alpha", "idle", 2, 2),
        membership("beta", "lost", 3, 1, lost_reason="outcome_unknown"),
        membership("gamma", "idle", 1, 1),
        membership("delta", "active", 1, activation_id="in-d1.1"),
        membership("child", "active", 1, activation_id="in-c1.1", shared_workspace_id="w-delta"),
        membership("epsilon", "quarantined", 3, activation_id="in-e2.1"),
        membership("zeta", "idle", 2),
        membership("eta", "lost", 1, lost_reason="session_unavailable"),
    ),
    activations=(
        activation("a1.2", "alpha", 1, "settled", 14, 15, 18, native_turn=1, epoch=1),
        activation("a2.1", "alpha", 2, "settled", 32, 33, 38, native_turn=2, epoch=2),
        activation("b1.1", "beta", 1, "settled", 112, 113, 118, native_turn=1, epoch=1),
        activation("b2.1", "beta", 2, "lost", 130, 131, 261),
        activation("g1.1", "gamma", 1, "settled", 303, 304, 318, native_turn=1, epoch=1),
        activation("d1.1", "delta", 1, "admitted", 943, 944, None),
        activation("c1.1", "child", 1, "preparing", 953, None, None),
        activation("e1.1", "epsilon", 1, "abandoned", 503, None, 509),
        activation("e2.1", "epsilon", 2, "quarantined", 603, 604, None),
        activation("z1.1", "zeta", 1, "not_delivered", 703, 704, 711),
        activation("h1.1", "eta", 1, "lost", 803, None, 810),
    ),
    snapshots=(SnapshotFact("w-alpha", 1, "a1"), SnapshotFact("w-alpha", 2, "a2"), SnapshotFact("w-gamma", 1, "g1")),
    events=(
        events("alpha", "a1", 1, 4, (10, 12)),
        events("alpha", "a1", 5, 8, (14, 17), "a1.2"),
        events("alpha", "a1", 9, 9, (20, 20)),
        events("alpha", "a1", 10, 10, (20, 20), end=True),
        events("alpha", "a2", 11, 12, (25, 30)),
        events("alpha", "a2", 13, 15, (33, 37), "a2.1"),
        events("alpha", "a2", 16, 16, (40, 40), end=True),
        events("alpha", "a3", 17, 18, (900, 900)),
        events("beta", "b1", 1, 2, (100, 110)),
        events("beta", "b1", 3, 4, (113, 117), "b1.1"),
        events("beta", "b1", 5, 5, (120, 120), end=True),
        events("beta", "b2", 6, 6, (126, 126)),
        events("beta", "b3", 7, 7, (127, 127)),
        events("beta", "b2", 8, 8, (128, 128)),
        events("beta", "b2", 9, 10, (131, 140), "b2.1"),
        events("beta", "b2", 11, 11, (260, 260)),
        events("beta", "b2", 12, 12, (260, 260), end=True),
        events("beta", "b3", 13, 13, (261, 261)),
        events("beta", "b3", 14, 14, (261, 261), end=True),
        events("gamma", "g1", 1, 2, (300, 301)),
        events("gamma", "g1", 3, 4, (304, 317), "g1.1"),
        events("gamma", "g1", 5, 5, (320, 320)),
        events("delta", "d1", 1, 2, (940, 941)),
        events("delta", "d1", 3, 4, (945, 990), "d1.1"),
        events("child", "c1", 1, 3, (950, 951)),
        events("epsilon", "e1", 1, 3, (500, 510)),
        events("epsilon", "e1", 4, 4, (510, 510), end=True),
        events("epsilon", "e2", 5, 7, (600, 930)),
        events("epsilon", "e2", 8, 8, (930, 930), end=True),
        events("zeta", "z1", 1, 3, (700, 710)),
        events("zeta", "z1", 4, 4, (710, 710), end=True),
        events("eta", "h1", 1, 3, (800, 810)),
        events("eta", "h1", 4, 4, (810, 810), end=True),
    ),
    messages=(
        *messages("a1", "alpha", "delivered", output=True),
        *messages("a2", "alpha", "delivered", output=True),
        *messages("a3", "alpha", "queued"),
        *messages("b1", "beta", "delivered", output=True),
        *messages("b2", "beta", "unknown"),
        *messages("b3", "beta", "not_delivered"),
        *messages("g1", "gamma", "delivered", output=True),
        *messages("d1", "delta", "delivering"),
        *messages("c1", "child", "delivering"),
        *messages("e1", "epsilon", "not_delivered"),
        *messages("e2", "epsilon", "unknown"),
        *messages("z1", "zeta", "not_delivered"),
        *messages("h1", "eta", "not_delivered"),
    ),
    holds=tuple(hold(scope) for scope in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")),
    ledger=tuple(LedgerEntry(text) for text in ("a1", "a2", "b1", "b2", "g1", "d1")),
    processes=(
        ProcessSeen("in-a1.2", "7/1", 14, take_at=14),
        ProcessSeen("in-a2.1", "7/1", 14, take_at=32),
        ProcessSeen("in-b1.1", "8/1", 112, dead_at=129.5, take_at=112),
        ProcessSeen("in-b2.1", "9/1", 131, dead_at=262, take_at=130),
    ),
)


def changed(history: History, table: str, key: str, **values: Any) -> History:
    """`history` with other values in one fact, named by its id (or thread id, or the first number of a span of events)."""
    facts = getattr(history, table)
    found = [one for one in facts if key_of(one) == key]
    assert len(found) == 1, (table, key)
    return replace(history, **{table: tuple(replace(one, **values) if one is found[0] else one for one in facts)})


def without(history: History, table: str, key: str) -> History:
    """`history` without one fact."""
    facts = getattr(history, table)
    assert any(key_of(one) == key for one in facts), (table, key)
    return replace(history, **{table: tuple(one for one in facts if key_of(one) != key)})


def added(history: History, table: str, *facts: Any) -> History:
    """`history` with further facts."""
    return replace(history, **{table: (*(getattr(history, table) or ()), *facts)})


def key_of(fact: Any) -> str:
    """What a fact is named by in these tests."""
    if isinstance(fact, EventsFact):
        return f"{fact.thread_id}:{fact.first_seq}"
    if isinstance(fact, SnapshotFact):
        return f"{fact.shared_workspace_id}:{fact.epoch}"
    for name in ("id", "thread_id", "uid", "activation_id", "text"):
        if hasattr(fact, name):
            return getattr(fact, name)
    raise TypeError(fact)
