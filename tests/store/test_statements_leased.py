"""Each write of a worker, and its stale twins: another attempt, generation, run or state, and a lease that is over.

Proves: L-11, A-01, R-02, F-05, F-06, H-05 at the statements themselves: zero rows, whatever the caller had looked at before.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString

import pytest

from harness.postgres import Sessions
from harness.rows import Rows
from turnkeeper.kit.ids import digest, new_id
from turnkeeper.store import activations, attempts, memberships, runs, workspaces
from turnkeeper.store.guards import Lease, is_held
from turnkeeper.store.tx import Database, Tx


@dataclass(frozen=True)
class Ids:
    """The rows of one turn, and another live attempt."""

    uid: str
    thread: str
    run: str
    membership: str
    activation: str
    lease: Lease
    other: Lease


Write = Callable[[Tx, Lease, Ids], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """A write: the SQL that brings the rows to where it is right, and further SQL after which it must touch nothing."""

    name: str
    write: Write
    setup: tuple[LiteralString, ...] = ()
    stale: tuple[LiteralString, ...] = ()
    only_running: bool = False
    ids: dict[str, str] = field(default_factory=dict[str, str])


ACTIVE: LiteralString = (
    "UPDATE memberships SET state = 'active', activation_id = %(activation)s, fence = 1 WHERE id = %(membership)s"
)
ADMITTED: LiteralString = "UPDATE activations SET state = 'admitted', admitted_at = tk_now() WHERE id = %(activation)s"
ADMITTED_JOB: LiteralString = "UPDATE memberships SET admitted_job_id = %(run)s WHERE id = %(membership)s"
OTHER_JOB: LiteralString = "UPDATE memberships SET admitted_job_id = %(other_run)s WHERE id = %(membership)s"
HIGHER_FENCE: LiteralString = "UPDATE memberships SET fence = 9 WHERE id = %(membership)s"
QUARANTINED: LiteralString = "UPDATE memberships SET state = 'quarantined' WHERE id = %(membership)s"
LOST: LiteralString = (
    "UPDATE memberships SET state = 'lost', lost_reason = 'x', activation_id = NULL WHERE id = %(membership)s"
)
ACCEPTED: LiteralString = "UPDATE attempts SET accepted_at = tk_now(), lease_owner = 'another' WHERE id = %(attempt)s"
NO_ACTIVATION: LiteralString = "DELETE FROM activations WHERE id = %(activation)s"
ABANDONED: LiteralString = "UPDATE activations SET state = 'abandoned', ended_at = tk_now() WHERE id = %(activation)s"
FOREIGN: LiteralString = "UPDATE activations SET attempt_id = %(other_attempt)s WHERE id = %(activation)s"
LATER_FENCE: LiteralString = "UPDATE activations SET fence = 9 WHERE id = %(activation)s"


async def settle_activation(tx: Tx, lease: Lease, ids: Ids) -> Any:
    return await activations.settle(
        tx, lease, activation_id=ids.activation, fence=1, outcome="completed", stop_reason="end_turn", native_turn=1,
        epoch=1, final_message="x", error_code=None,
    )  # fmt: skip


async def settle_membership(tx: Tx, lease: Lease, ids: Ids) -> Any:
    return await memberships.settle(
        tx, lease, membership_id=ids.membership, activation_id=ids.activation, fence=1, native_turn=1,
        native_session="n", generation="g1", boot_id="b1", agent_pid=1, agent_start_ticks=1,
    )  # fmt: skip


CASES = (
    Case("renew", lambda tx, lease, _: attempts.renew(tx, lease),
         stale=("UPDATE attempts SET renewable_until = tk_now() - interval '1 second' WHERE id = %(attempt)s",)),
    Case("accept", lambda tx, lease, _: attempts.accept(tx, lease, "w"), stale=(ACCEPTED,), only_running=True),
    Case("extend", lambda tx, lease, _: attempts.extend(tx, lease), only_running=True,
         stale=("UPDATE attempts SET renewable_until = tk_now() - interval '1 second' WHERE id = %(attempt)s",)),
    Case("close", lambda tx, lease, _: attempts.close_held(tx, lease, "failed")),
    Case("release", lambda tx, lease, ids: attempts.release(tx, lease, thread_id=ids.thread, why="not_created"),
         setup=(NO_ACTIVATION,), stale=(ACCEPTED, ADMITTED_JOB)),
    Case("take stream numbers",
         lambda tx, lease, _: attempts.take_stream_numbers(tx, lease, after=0, upto=3, stored_bytes=10),
         stale=("UPDATE attempts SET stream_no_last = 2 WHERE id = %(attempt)s",)),
    Case("manifest", lambda tx, lease, _: runs.record_manifest(tx, lease, {"a": 1}, "0" * 64),
         stale=("UPDATE runs SET manifest = '{}', manifest_sha256 = repeat('1', 64) WHERE id = %(run)s",)),
    Case("container", lambda tx, lease, ids: workspaces.record_container(
        tx, lease, runtime_scope_id=ids.thread, sandbox_id=ids.thread, generation="g", boot_id="b")),
    Case("epoch", lambda tx, lease, ids: workspaces.next_epoch(tx, lease, runtime_scope_id=ids.thread)),
    Case("activate membership", lambda tx, lease, ids: memberships.activate(
        tx, lease, membership_id=ids.membership, fence=0, activation_id=ids.activation, source="idle"),
         stale=(HIGHER_FENCE, LOST), only_running=True),
    Case("insert activation", lambda tx, lease, ids: activations.insert_activation(
        tx, lease, activation_id=new_id(), membership_id=ids.membership, fence=2, generation="g", boot_id="b",
        token_hash=digest("t")), setup=(NO_ACTIVATION,), only_running=True),
    Case("admit membership", lambda tx, lease, ids: memberships.admit(
        tx, lease, membership_id=ids.membership, activation_id=ids.activation, fence=1),
         setup=(ACTIVE,), stale=(HIGHER_FENCE, OTHER_JOB, QUARANTINED, LOST), only_running=True),
    Case("admit activation", lambda tx, lease, ids: activations.admit(
        tx, lease, activation_id=ids.activation, fence=1, native_session="n"),
         stale=(ADMITTED, ABANDONED, FOREIGN, LATER_FENCE), only_running=True),
    Case("settle activation", settle_activation, setup=(ADMITTED,),
         stale=(FOREIGN, LATER_FENCE, "UPDATE activations SET state = 'quarantined' WHERE id = %(activation)s")),
    Case("settle membership", settle_membership, setup=(ACTIVE, ADMITTED_JOB),
         stale=(HIGHER_FENCE, OTHER_JOB, QUARANTINED, LOST,
                "UPDATE memberships SET native_turn = 1, native_session = 'n' WHERE id = %(membership)s")),
    Case("abandon membership", lambda tx, lease, ids: memberships.abandon(
        tx, lease, membership_id=ids.membership, activation_id=ids.activation, fence=1, state="idle"),
         setup=(ACTIVE,), stale=(ADMITTED_JOB, HIGHER_FENCE, QUARANTINED, LOST)),
    Case("abandon activation", lambda tx, lease, ids: activations.abandon(
        tx, lease, activation_id=ids.activation, fence=1), stale=(ADMITTED, FOREIGN, LATER_FENCE)),
)  # fmt: skip


class _RolledBackError(Exception):
    pass


async def touched(database: Database, ids: Ids, case: Case, lease: Lease, *before: LiteralString) -> bool:
    """Whether the write touches a row after `before`; everything is rolled back."""
    params = {
        "attempt": ids.lease.attempt_id,
        "run": ids.run,
        "membership": ids.membership,
        "activation": ids.activation,
        "other_run": ids.other.run_id,
        "other_attempt": ids.other.attempt_id,
    }
    result: list[Any] = []

    async def work(tx: Tx) -> None:
        for statement in (*case.setup, *before):
            await tx.execute(statement, params)
        result.append(await case.write(tx, lease, ids))
        raise _RolledBackError

    with pytest.raises(_RolledBackError):
        await database.run("test", work)
    return bool(result[0])


@pytest.fixture
async def ids(sessions: Sessions) -> Ids:
    """A claimed turn with a preparing activation, and another claimed run."""
    session = await sessions.open(autocommit=True)
    rows = Rows(session)
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")
    attempt = await rows.attempt(run)
    membership = await rows.membership(await rows.workspace(uid, thread), thread)
    activation = await rows.activation(membership, run, attempt, 1)
    other_thread = await rows.conversation(uid)
    other_run = await rows.run(uid, other_thread, status="running")
    other = await rows.attempt(other_run)

    async def lease(attempt_id: str, run_id: str) -> Lease:
        return Lease(
            attempt_id, run_id, await rows.value("SELECT lease_generation FROM attempts WHERE id = %s", attempt_id)
        )

    return Ids(uid, thread, run, membership, activation, await lease(attempt, run), await lease(other, other_run))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_write_and_its_stale_twins(database: Database, ids: Ids, case: Case) -> None:
    right = ids.lease
    assert await touched(database, ids, case, right)
    twins = {
        "another generation": replace(right, generation=right.generation + 100),
        "another attempt": replace(right, attempt_id=ids.other.attempt_id),
        "another attempt with its own generation": replace(ids.other, run_id=ids.run),
        "another run": replace(right, run_id=ids.other.run_id),
    }
    for what, lease in twins.items():
        assert not await touched(database, ids, case, lease), what
    over: dict[str, LiteralString] = {
        "expired": "UPDATE attempts SET lease_expires_at = tk_now() - interval '1 second' WHERE id = %(attempt)s",
        "ended": "UPDATE attempts SET ended_at = tk_now(), outcome = 'failed' WHERE id = %(attempt)s",
        "recovering": "UPDATE runs SET status = 'recovering' WHERE id = %(run)s",
        "failed": "UPDATE runs SET status = 'failed', error_code = 'no_output', ended_at = tk_now() WHERE id = %(run)s",
    }
    for what, statement in over.items():
        # A closed attempt can be written by nobody, so the guard of the table itself may answer first.
        assert not await touched(database, ids, case, right, statement), what
    cancelled: LiteralString = (
        "UPDATE runs SET status = 'cancel_requested', cancel_requested_at = tk_now() WHERE id = %(run)s"
    )
    assert await touched(database, ids, case, right, cancelled) != case.only_running
    for statement in case.stale:
        assert not await touched(database, ids, case, right, statement), statement


async def test_the_look_says_what_the_statements_say(database: Database, ids: Ids) -> None:
    assert await database.read("test", lambda r: is_held(r, ids.lease))
    assert not await database.read("test", lambda r: is_held(r, replace(ids.lease, generation=0)))
