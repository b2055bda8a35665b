"""Locks: their order is asserted at run time, and they hold what they say against real opponents."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

import turnkeeper
from harness.postgres import RawSession, Sessions
from harness.rows import Rows
from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.kit.ids import new_id
from turnkeeper.store import locks
from turnkeeper.store.locks import LockTaken, Rank
from turnkeeper.store.tx import Database, Tx


@dataclass(frozen=True)
class RunRow:
    """The columns of a run that these tests look at."""

    id: str
    status: str
    depth: int


@dataclass(frozen=True)
class Id:
    """Any row that has an id."""

    id: str


@dataclass
class World:
    """One row of everything that can be locked."""

    rows: Rows
    uid: str
    thread: str
    run: str
    attempt: str
    workspace: str
    membership: str
    activation: str
    input: str
    host: str = "host-1"

    def locks(self) -> list[tuple[Rank, Callable[[Tx], Awaitable[object]]]]:
        """Every single lock, lowest rank first."""
        return [
            (Rank.SCOPE, lambda tx: locks.lock_scope(tx, self.thread)),
            (Rank.OWNER, lambda tx: locks.lock_owner(tx, self.uid)),
            (Rank.RUN, lambda tx: locks.lock_run(tx, self.run)),
            (Rank.ATTEMPT, lambda tx: locks.lock_attempt(tx, self.attempt)),
            (Rank.WORKSPACE, lambda tx: locks.lock_workspace(tx, self.thread)),
            (Rank.MEMBERSHIP, lambda tx: locks.lock_membership(tx, self.thread)),
            (Rank.ACTIVATION, lambda tx: locks.lock_activation(tx, self.activation)),
            (Rank.INPUT, lambda tx: locks.lock_input(tx, self.input)),
            (Rank.HOST, lambda tx: locks.lock_host(tx, self.host)),
            (Rank.EVENT_COUNTER, lambda tx: locks.lock_event_counter(tx, self.thread)),
        ]


@pytest.fixture
async def world(sessions: Sessions) -> World:
    """One row of everything."""
    rows = Rows(await sessions.open(autocommit=True))
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")
    attempt = await rows.attempt(run)
    workspace = await rows.workspace(uid, thread)
    membership = await rows.membership(workspace, thread)
    activation = await rows.activation(membership, run, attempt, 1)
    moment = await rows.value("SELECT tk_now()")
    question = new_id()
    await rows.insert("inputs", id=question, thread_id=thread, run_id=run, kind="question", asked_by="agent", question="?",
                      deadline=moment)  # fmt: skip
    await rows.insert(
        "hosts", name="host-1", incarnation=new_id(), version="1", capacity=1, provisioner="local", state="ready"
    )
    await rows.insert("event_counters", thread_id=thread)
    return World(rows, uid, thread, run, attempt, workspace, membership, activation, question)


async def test_all_ranks_in_order(database: Database, world: World) -> None:
    """From the scope to the event counter, with the observer told of each while it is held."""
    seen: list[LockTaken] = []

    async def observe(lock: LockTaken) -> None:
        seen.append(lock)

    async def work(tx: Tx) -> None:
        for rank, lock in world.locks():
            await lock(tx)
            assert tx.locks.all()[-1][0] is rank

    with database.observe_locks(observe):
        await database.run("everything", work)
    assert [lock.rank for lock in seen] == list(Rank)
    assert {lock.transaction for lock in seen} == {"everything"}
    await database.run("unobserved", work)
    assert len(seen) == len(Rank)


@pytest.mark.parametrize("lower", [rank for rank in Rank if rank < Rank.EVENT_COUNTER])
async def test_rank_never_falls(database: Database, world: World, lower: Rank) -> None:
    """Any lock after one of a higher rank is refused before it is asked for, with nobody else there to deadlock with."""
    table = dict(world.locks())

    async def work(tx: Tx) -> None:
        await table[Rank(lower + 1)](tx)
        await table[lower](tx)

    with pytest.raises(InvariantViolation, match=f"lock {lower.name} .* after {Rank(lower + 1).name}"):
        await database.run("inverted", work)


async def test_one_scope_lock_in_a_transaction(database: Database) -> None:
    """What frees room for another scope is done in a transaction of its own."""

    async def work(tx: Tx) -> None:
        await locks.lock_scope(tx, "a")
        await locks.lock_scope(tx, "a")  # the same again waits for nobody
        await locks.lock_scope(tx, "b")

    with pytest.raises(InvariantViolation, match="a second scope lock, b"):
        await database.run("two scopes", work)


async def test_rows_of_one_rank_are_locked_in_key_order(database: Database, world: World) -> None:
    """Two transactions that lock the same attempts in different orders would deadlock."""
    other_run = await world.rows.run(world.uid, await world.rows.conversation(world.uid), status="running")
    first, second = sorted([world.attempt, await world.rows.attempt(other_run)])

    async def rising(tx: Tx) -> None:
        assert await locks.lock_attempt(tx, first)
        assert await locks.lock_attempt(tx, second)
        assert await locks.lock_attempt(tx, first)  # held already

    async def falling(tx: Tx) -> None:
        await locks.lock_attempt(tx, second)
        await locks.lock_attempt(tx, first)

    async def after_several(tx: Tx) -> None:
        await locks.lock_open_attempts(tx, [other_run], Id)
        await locks.lock_attempt(tx, "00000000-0000-7000-8000-000000000000")

    await database.run("rising", rising)
    for work in (falling, after_several):
        with pytest.raises(InvariantViolation, match="out of order within its rank"):
            await database.run("falling", work)


async def test_the_root_is_locked_before_the_target(database: Database, world: World) -> None:
    """Rank 2: root, target, levels."""
    child = await world.rows.subagent(world.uid, world.thread, world.thread, world.run, world.run, 1)

    async def right(tx: Tx) -> None:
        assert await locks.lock_root(tx, world.run, RunRow) == RunRow(world.run, "running", 0)
        assert await locks.lock_run(tx, child)

    async def wrong(tx: Tx) -> None:
        await locks.lock_run(tx, child)
        await locks.lock_root(tx, world.run)

    async def after_levels(tx: Tx) -> None:
        await locks.lock_descendants(tx, world.run, world.run, 0, RunRow)
        await locks.lock_run(tx, world.run)

    await database.run("right", right)
    for work in (wrong, after_levels):
        with pytest.raises(InvariantViolation, match=r"lock RUN .* out of order within its rank"):
            await database.run("wrong", work)


async def test_the_walk_passes_through_ended_runs_and_locks_the_others(database: Database, world: World) -> None:
    """Proves: T-01. Level by level, within a level by created_at and id; ended runs are passed through, not locked."""
    rows = world.rows
    ended_at = await rows.value("SELECT tk_now()")

    async def child(parent: str, depth: int, **columns: object) -> str:
        return await rows.subagent(world.uid, world.thread, world.thread, parent, world.run, depth, **columns)

    ended = await child(world.run, 1, status="cancelled", ended_at=ended_at)
    live = await child(world.run, 1)
    below_ended = await child(ended, 2)
    below_live = await child(live, 2, status="running")
    deepest = await child(below_ended, 3)

    async def work(tx: Tx) -> list[RunRow]:
        await locks.lock_root(tx, world.run)
        found = await locks.lock_descendants(tx, world.run, world.run, 0, RunRow)
        assert not tx.locks.holds(Rank.RUN, ended)
        return found

    assert [row.id for row in await database.run("walk", work)] == [live, below_ended, below_live, deepest]

    async def subtree(tx: Tx) -> list[RunRow]:
        await locks.lock_root(tx, world.run)
        await locks.lock_run(tx, ended)
        return await locks.lock_descendants(tx, world.run, ended, 1, RunRow)

    assert [row.id for row in await database.run("subtree", subtree)] == [below_ended, deepest]


async def test_the_walk_sees_a_child_committed_while_it_waited(
    database: Database, world: World, sessions: Sessions
) -> None:
    """Proves: T-07. Each level is a statement of its own after the level above is locked."""
    rows = world.rows
    live = await rows.subagent(world.uid, world.thread, world.thread, world.run, world.run, 1)
    spawner = await sessions.open()
    await spawner.execute("SELECT 1 FROM runs WHERE id = %s FOR NO KEY UPDATE", (live,))

    async def work(tx: Tx) -> list[RunRow]:
        return await locks.lock_descendants(tx, world.run, world.run, 0, RunRow)

    walking = asyncio.create_task(database.run("walk", work))
    await sessions.wait_until_blocked_by(spawner)
    late = await Rows(spawner).subagent(world.uid, world.thread, world.thread, live, world.run, 2)
    await spawner.commit()
    assert [row.id for row in await walking] == [live, late]


async def test_scope_runs_need_the_scope_lock(database: Database, world: World) -> None:
    """Raising a cleanup fence: lock the scope's non-terminal runs, then look."""
    waiting = await world.rows.run(world.uid, world.thread)

    async def without(tx: Tx) -> None:
        await locks.lock_scope_runs(tx, world.thread, RunRow)

    async def with_lock(tx: Tx) -> list[RunRow]:
        await locks.lock_scope(tx, world.thread)
        return await locks.lock_scope_runs(tx, world.thread, RunRow)

    with pytest.raises(InvariantViolation, match="relies on lock SCOPE"):
        await database.run("without", without)
    assert [row.id for row in await database.run("with", with_lock)] == [world.run, waiting]


async def test_a_missing_row_is_an_answer(database: Database, world: World) -> None:
    """False or None, and nothing counts as held."""
    missing = new_id()

    async def work(tx: Tx) -> None:
        assert not await locks.lock_owner(tx, missing)
        assert await locks.lock_root(tx, missing, RunRow) is None
        assert await locks.lock_open_attempt(tx, missing, Id) is None
        assert await locks.lock_open_attempts(tx, [missing], Id) == []
        assert not await locks.lock_host(tx, "nobody")
        assert tx.locks.all() == ()

    await database.run("missing", work)


async def test_the_event_counter_is_made_by_its_first_user(database: Database, world: World) -> None:
    """Of two first users one waits for the other, and neither fails."""
    thread = await world.rows.conversation(world.uid)
    together = asyncio.Barrier(2)

    async def work(tx: Tx) -> int:
        await tx.fetch_value("SELECT 1")
        async with asyncio.timeout(10):
            await together.wait()
        last = await locks.lock_event_counter(tx, thread)
        await tx.execute("UPDATE event_counters SET last_seq = last_seq + 1 WHERE thread_id = %s", (thread,))
        return last

    assert sorted(await asyncio.gather(database.run("first", work), database.run("second", work))) == [0, 1]


async def _locked(opponent: RawSession, query: str) -> bool:
    try:
        await opponent.execute(query.encode())
    except psycopg.errors.LockNotAvailable:
        return True
    finally:
        await opponent.rollback()
    return False


@pytest.mark.parametrize("rank", [rank for rank in Rank if rank is not Rank.SCOPE])
async def test_row_locks_exclude_writers_and_let_references_pass(
    database: Database, world: World, sessions: Sessions, rank: Rank
) -> None:
    """FOR NO KEY UPDATE: a second lock must wait, a foreign-key check (FOR KEY SHARE) passes."""
    tables = {
        Rank.OWNER: ("users", "uid", world.uid),
        Rank.RUN: ("runs", "id", world.run),
        Rank.ATTEMPT: ("attempts", "id", world.attempt),
        Rank.WORKSPACE: ("shared_workspaces", "id", world.workspace),
        Rank.MEMBERSHIP: ("memberships", "id", world.membership),
        Rank.ACTIVATION: ("activations", "id", world.activation),
        Rank.INPUT: ("inputs", "id", world.input),
        Rank.HOST: ("hosts", "name", world.host),
        Rank.EVENT_COUNTER: ("event_counters", "thread_id", world.thread),
    }
    table, column, key = tables[rank]
    opponent = await sessions.open()
    select = f"SELECT 1 FROM {table} WHERE {column} = '{key}'"  # noqa: S608 - the test's own words

    async def work(tx: Tx) -> None:
        await dict(world.locks())[rank](tx)
        assert await _locked(opponent, f"{select} FOR NO KEY UPDATE NOWAIT")
        assert not await _locked(opponent, f"{select} FOR KEY SHARE NOWAIT")

    await database.run("holds", work)
    assert not await _locked(opponent, f"{select} FOR NO KEY UPDATE NOWAIT")


async def test_the_scope_lock_excludes_and_ends_with_the_transaction(
    database: Database, world: World, sessions: Sessions
) -> None:
    """The second transaction of the scope goes on at the first one's commit; another scope does not wait at all."""
    order: list[str] = []
    inside, leave = asyncio.Event(), asyncio.Event()

    async def first(tx: Tx) -> None:
        await locks.lock_scope(tx, world.thread)
        inside.set()
        await leave.wait()
        order.append("first")

    async def second(tx: Tx) -> None:
        await locks.lock_scope(tx, world.thread)
        order.append("second")

    async def elsewhere(tx: Tx) -> None:
        await locks.lock_scope(tx, new_id())
        order.append("elsewhere")

    holder = asyncio.create_task(database.run("first", first))
    await inside.wait()
    waiter = asyncio.create_task(database.run("second", second))
    watcher = await sessions.open(autocommit=True)
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while not await (await watcher.execute(waiting)).fetchall():
        await watcher.execute("SELECT pg_sleep(0.005)")
    await database.run("elsewhere", elsewhere)
    leave.set()
    await asyncio.gather(holder, waiter)
    assert order == ["elsewhere", "first", "second"]


async def test_skipping_locks_leave_out_what_somebody_holds(
    database: Database, world: World, sessions: Sessions
) -> None:
    """A batch of renewals never waits for one attempt; a row that is only referenced is not skipped."""
    other_run = await world.rows.run(world.uid, await world.rows.conversation(world.uid), status="running")
    other = await world.rows.attempt(other_run)
    holder, referrer = await sessions.open(), await sessions.open()
    await holder.execute("SELECT 1 FROM attempts WHERE id = %s FOR NO KEY UPDATE", (world.attempt,))
    await Rows(referrer).event(
        world.thread, world.run, 1, attempt_id=other, stream_no=1
    )  # holds FOR KEY SHARE on `other`

    async def work(tx: Tx) -> list[Id]:
        return await locks.lock_attempts_skipping(tx, [world.attempt, other], Id)

    assert await database.run("batch", work) == [Id(other)]


async def test_lock_then_look_sees_what_the_other_one_did(database: Database, world: World, sessions: Sessions) -> None:
    """The row that a lock returns after a wait is the newest version, and the clock of the next statement is later."""
    holder = await sessions.open()
    await holder.execute(
        "UPDATE runs SET status = 'cancel_requested', cancel_requested_at = tk_now() WHERE id = %s", (world.run,)
    )
    held_at = (await (await holder.execute("SELECT tk_now()")).fetchall())[0][0]

    async def work(tx: Tx) -> tuple[RunRow | None, bool]:
        row = await locks.lock_run(tx, world.run, RunRow)
        return row, await tx.fetch_value("SELECT tk_now() > %s", (held_at,))

    looking = asyncio.create_task(database.run("looks", work))
    await sessions.wait_until_blocked_by(holder)
    await holder.commit()
    assert await looking == (RunRow(world.run, "cancel_requested", 0), True)


def test_no_source_uses_the_strong_row_lock_or_a_session_lock() -> None:
    """FOR UPDATE deadlocks with foreign-key checks; a session-level advisory lock outlives its transaction in a pool."""
    banned = re.compile(r"(?<!NO KEY )\bFOR UPDATE\b|pg_(try_)?advisory_lock(_shared)?\b", re.IGNORECASE)
    root = Path(turnkeeper.__file__).parent
    sources = [path for path in root.rglob("*") if path.suffix in (".py", ".sql")]
    assert len(sources) > 20
    for path in sources:
        found = banned.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.relative_to(root)}: {found.group()}"
    assert banned.search("SELECT 1 FOR UPDATE")
    assert banned.search("SELECT pg_advisory_lock(1)")
    assert not banned.search("SELECT 1 FOR NO KEY UPDATE; SELECT pg_advisory_xact_lock(1)")
