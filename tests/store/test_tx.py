"""The transaction runner, on a real server with real opponents."""

import asyncio
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from harness.postgres import Sessions
from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.kit.outside import open_transaction
from turnkeeper.store.errors import ConstraintViolation, DatabaseUnavailable
from turnkeeper.store.pool import open_database
from turnkeeper.store.signals import CHANNEL, READY, events_signal
from turnkeeper.store.tx import Database, Reader, Tx, jsonb


@dataclass(frozen=True)
class Number:
    """A row of the table that these tests use."""

    id: int
    value: int


@pytest.fixture(autouse=True)
async def _numbers(sessions: Sessions) -> None:
    session = await sessions.open(autocommit=True)
    await session.execute("CREATE TABLE numbers (id integer PRIMARY KEY, value integer NOT NULL CHECK (value < 1000))")
    await session.execute("INSERT INTO numbers VALUES (1, 10), (2, 20)")


async def _value(database: Database, number: int = 1) -> int:
    return await database.read("value", lambda reader: _look(reader, number))


async def _look(reader: Reader, number: int) -> int:
    return await reader.fetch_value("SELECT value FROM numbers WHERE id = %s", (number,))


async def _set(tx: Tx, number: int, value: int) -> None:
    assert await tx.execute("UPDATE numbers SET value = %s WHERE id = %s", (value, number)) == 1


async def test_rows_become_what_the_statement_says(database: Database) -> None:
    """Dataclasses, dicts or one value; ids as text, jsonb as Python values, times aware."""

    async def work(tx: Tx) -> None:
        assert await tx.fetch_one("SELECT id, value FROM numbers WHERE id = 1", as_=Number) == Number(1, 10)
        assert await tx.fetch_one("SELECT id, value FROM numbers WHERE id = 3", as_=Number) is None
        assert await tx.fetch_all("SELECT id, value FROM numbers ORDER BY id", as_=Number) == [
            Number(1, 10),
            Number(2, 20),
        ]
        assert await tx.fetch_one("SELECT id FROM numbers WHERE id = %(id)s", {"id": 2}) == {"id": 2}
        assert await tx.fetch_value("SELECT value FROM numbers WHERE id = 3") is None
        wanted = "01980000-0000-7000-8000-00000000000a"
        assert await tx.fetch_value("SELECT %s::uuid", (wanted,)) == wanted
        assert await tx.fetch_value("SELECT ARRAY[%s::uuid]", (wanted,)) == [wanted]
        assert await tx.fetch_value("SELECT %s::jsonb", ({"a": [1, None]},)) == {"a": [1, None]}
        assert await tx.fetch_value("SELECT jsonb_typeof(%s)", (jsonb([1]),)) == "array"
        offset = (await tx.fetch_value("SELECT tk_now()")).utcoffset()
        assert offset is not None
        assert offset.total_seconds() == 0
        assert await tx.execute_many("UPDATE numbers SET value = %s WHERE id = %s", [(1, 1), (2, 2), (3, 3)]) == 2

    await database.run("rows", work)


async def test_two_rows_where_one_was_expected_are_a_defect(database: Database) -> None:
    """Neither of them is picked."""

    async def one(tx: Tx) -> object:
        return await tx.fetch_one("SELECT id FROM numbers")

    async def value(tx: Tx) -> object:
        return await tx.fetch_value("SELECT id FROM numbers")

    with pytest.raises(InvariantViolation, match="2 rows"):
        await database.run("one", one)
    with pytest.raises(InvariantViolation, match="more than one row"):
        await database.run("value", value)


async def test_a_failure_rolls_back_and_is_raised(database: Database) -> None:
    """Nothing of the work is left, nothing is called back or signalled, and it ran once."""
    runs: list[int] = []
    called: list[str] = []

    async def work(tx: Tx) -> None:
        runs.append(1)
        await _set(tx, 1, 11)
        tx.after_commit(lambda: called.append("effect"))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await database.run("fails", work)
    assert await _value(database) == 10
    assert (runs, called) == ([1], [])


async def test_effects_come_after_the_commit_and_with_the_connection_given_back(dsn: str) -> None:
    """A callback sees the committed row from outside, also on a pool of one connection; plain and async ones are run."""
    seen: list[object] = []
    async with open_database(dsn, min_size=1, max_size=1) as database:

        async def look() -> None:
            seen.append((await _value(database), open_transaction()))

        async def work(tx: Tx) -> str:
            await _set(tx, 1, 11)
            tx.after_commit(look)
            tx.after_commit(lambda: seen.append("plain"))
            return "result"

        assert await database.run("effects", work) == "result"
    assert seen == [(11, None), "plain"]


async def test_a_callback_that_fails_does_not_undo_the_commit(database: Database) -> None:
    """The caller hears of its commit, and the other callbacks are run."""
    seen: list[str] = []

    def fail() -> None:
        raise OSError("the effect failed")

    async def work(tx: Tx) -> int:
        await _set(tx, 1, 11)
        tx.after_commit(fail)
        tx.after_commit(lambda: seen.append("second"))
        return 7

    assert await database.run("effects", work) == 7
    assert (await _value(database), seen) == (11, ["second"])


async def test_deadlock_is_run_again(database: Database, sessions: Sessions) -> None:
    """Two real sessions lock two rows crosswise; PostgreSQL ends ours, and the second run commits with its effects once."""
    opponent = await sessions.open()
    await opponent.execute("SET deadlock_timeout = '60s'")  # the check that finds the cycle ends its own session: ours
    await opponent.commit()
    runs: list[int] = []
    effects: list[str] = []
    opposing: list[asyncio.Task[Any]] = []
    blocked = asyncio.Event()

    async def work(tx: Tx) -> None:
        runs.append(1)
        tx.after_commit(lambda: effects.append(f"run {len(runs)}"))
        await _set(tx, 1, 11)
        if len(runs) == 1:
            await opponent.execute("UPDATE numbers SET value = 22 WHERE id = 2")
            opposing.append(asyncio.create_task(opponent.execute("UPDATE numbers SET value = 12 WHERE id = 1")))  # type: ignore[arg-type]
            await sessions.wait_until_blocked(opponent.info.backend_pid)
            blocked.set()
        await _set(tx, 2, 21)

    running = asyncio.create_task(database.run("deadlock", work))
    await blocked.wait()
    await opposing[0]
    await opponent.commit()
    await running
    assert len(runs) == 2
    assert effects == ["run 2"]
    assert (await _value(database, 1), await _value(database, 2)) == (11, 21)


async def test_serialization_failure_is_run_again(database: Database, sessions: Sessions) -> None:
    """A real one: the row changes after the snapshot that the statement must use."""
    opponent = await sessions.open(autocommit=True)
    runs: list[int] = []

    async def work(tx: Tx) -> None:
        runs.append(1)
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        value = await _look(tx, 1)
        if len(runs) == 1:
            await opponent.execute("UPDATE numbers SET value = 50 WHERE id = 1")
        await _set(tx, 1, value + 1)

    await database.run("serialization", work)
    assert (len(runs), await _value(database)) == (2, 51)


async def test_retries_are_bounded(database: Database) -> None:
    """What always conflicts ends as an operational error."""
    runs: list[int] = []

    async def work(tx: Tx) -> None:
        runs.append(1)
        await tx.execute("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$")

    with pytest.raises(DatabaseUnavailable, match="still conflicting"):
        await database.run("always", work, retries=2)
    assert len(runs) == 3


async def test_other_errors_are_not_run_again(database: Database) -> None:
    """A refused write is a broken invariant, named by its constraint, and shows no row (PostgreSQL's DETAIL would)."""
    runs: list[int] = []

    async def work(tx: Tx) -> None:
        runs.append(1)
        await _set(tx, 1, 4321)

    with pytest.raises(ConstraintViolation) as caught:
        await database.run("refused", work)
    assert caught.value.constraint == "numbers_value_check"
    assert "4321" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert len(runs) == 1


async def test_a_defect_of_ours_stays_what_it_is(database: Database) -> None:
    """Bad SQL is neither an outage nor retried."""

    async def work(tx: Tx) -> None:
        await tx.execute("UPDATE no_such_table SET a = 1")

    with pytest.raises(psycopg.errors.UndefinedTable):
        await database.run("defect", work)


async def test_transactions_do_not_nest(database: Database) -> None:
    """A task that held two connections could wait for the second one for ever."""

    async def work(tx: Tx) -> None:
        assert open_transaction() == "outer"
        await _value(database)

    with pytest.raises(InvariantViolation, match="value: started inside outer"):
        await database.run("outer", work)
    assert open_transaction() is None


async def test_a_transaction_ends_with_its_work(database: Database) -> None:
    """Whoever keeps the object finds it unusable: no statement runs outside the transaction."""
    kept: list[Tx] = []

    async def work(tx: Tx) -> None:
        kept.append(tx)

    await database.run("kept", work)
    for use in (kept[0].execute("SELECT 1"), kept[0].fetch_value("SELECT 1"), kept[0].fetch_all("SELECT 1")):
        with pytest.raises(InvariantViolation, match="kept: used after its end"):
            await use
    with pytest.raises(InvariantViolation, match="used after its end"):
        kept[0].notify(READY)


async def test_a_read_only_reads(database: Database) -> None:
    """A write that slipped into a read would be committed by itself, outside any transaction."""

    async def work(reader: Reader) -> object:
        return await reader.fetch_value("UPDATE numbers SET value = 1 WHERE id = 1 RETURNING value")

    with pytest.raises(InvariantViolation, match="may only read"):
        await database.read("writes", work)
    assert await _value(database) == 10


async def test_a_snapshot_stands_still_and_cannot_write(database: Database, sessions: Sessions) -> None:
    """What commits between its statements is not seen; a write hidden in a read is refused by the server itself."""
    other = await sessions.open(autocommit=True)

    async def look_twice(reader: Reader) -> tuple[int, int]:
        before = await _look(reader, 1)
        await other.execute("UPDATE numbers SET value = 11 WHERE id = 1")
        return before, await _look(reader, 1)

    assert await database.snapshot_read("snapshot", look_twice) == (10, 10)
    assert await _value(database) == 11

    async def hidden(reader: Reader) -> object:
        return await reader.fetch_value("WITH w AS (UPDATE numbers SET value = 1 RETURNING 1) SELECT count(*) FROM w")

    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await database.snapshot_read("hidden", hidden)
    assert await _value(database) == 11
    assert await database.run("after", lambda tx: tx.fetch_value("SHOW transaction_isolation")) == "read committed"


async def test_transactions_are_read_committed_whatever_the_default(dsn: str, sessions: Sessions) -> None:
    """Lock, then look: the statement after a wait must see what the other session committed."""
    session = await sessions.open(autocommit=True)
    await session.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', "
                          "current_database()); END $$")  # fmt: skip
    async with open_database(dsn, min_size=1, max_size=2) as database:

        async def work(tx: Tx) -> None:
            assert await tx.fetch_value("SHOW transaction_isolation") == "read committed"
            assert await _look(tx, 1) == 10
            await session.execute("UPDATE numbers SET value = 77 WHERE id = 1")
            assert await _look(tx, 1) == 77

        await database.run("isolation", work)


async def test_signals_travel_with_the_commit_once_each(database: Database, sessions: Sessions) -> None:
    """None before the commit, none of a transaction that rolled back, and equal ones are one."""
    listener = await sessions.open(autocommit=True)
    await listener.execute(f"LISTEN {CHANNEL}")
    thread = "01980000-0000-7000-8000-00000000000a"

    async def fails(tx: Tx) -> None:
        tx.notify(READY)
        raise KeyError

    async def work(tx: Tx) -> None:
        tx.notify(READY)
        tx.notify(events_signal(thread, 3))
        tx.notify(READY)

    with pytest.raises(KeyError):
        await database.run("fails", fails)
    await database.run("works", work)
    got = [notification.payload async for notification in listener.notifies(timeout=5, stop_after=2)]
    assert sorted(got) == sorted([READY.payload(), events_signal(thread, 3).payload()])
    assert [notification async for notification in listener.notifies(timeout=0.2)] == []


async def test_an_exhausted_pool_answers_in_bounded_time(dsn: str) -> None:
    """The caller hears that there is no connection; it does not wait for ever."""
    async with open_database(dsn, min_size=1, max_size=1, pool_wait_s=0.3) as database:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold(tx: Tx) -> None:
            entered.set()
            await leave.wait()

        holder = asyncio.create_task(database.run("holder", hold))
        await entered.wait()
        with pytest.raises(DatabaseUnavailable, match=r"no free connection within 0\.3 s"):
            await _value(database)
        leave.set()
        await holder
        assert await _value(database) == 10


async def test_dead_pooled_connections_are_passed_over(dsn: str, sessions: Sessions) -> None:
    """After a restart of the server each pooled connection is dead; neither a transaction nor a read notices."""
    killer = await sessions.open(autocommit=True)

    async def cut() -> None:
        await killer.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'doomed'")

    async with open_database(dsn, min_size=3, max_size=3, application_name="doomed") as database:
        runs: list[int] = []

        async def work(tx: Tx) -> None:
            runs.append(1)
            await _set(tx, 1, 11)

        await cut()
        await database.run("after the cut", work)
        await cut()
        assert await _value(database) == 11
        assert runs == [1]


async def test_a_connection_lost_within_a_transaction_is_an_outage(database: Database, sessions: Sessions) -> None:
    """It rolled back for certain, and is not run again behind the caller's back."""
    killer = await sessions.open(autocommit=True)
    runs: list[int] = []

    async def work(tx: Tx) -> None:
        runs.append(1)
        await _set(tx, 1, 11)
        await killer.execute("SELECT pg_terminate_backend(%s)", (await tx.fetch_value("SELECT pg_backend_pid()"),))
        await _set(tx, 2, 21)

    with pytest.raises(DatabaseUnavailable) as caught:
        await database.run("cut", work)
    assert not caught.value.outcome_unknown
    assert (runs, await _value(database)) == ([1], 10)


async def test_a_connection_lost_in_commit_leaves_the_outcome_open(database: Database, sessions: Sessions) -> None:
    """The caller is told so; the effects are not run, because the commit is not certain."""
    session = await sessions.open(autocommit=True)
    await session.execute(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(5); RETURN NULL; END $$"
    )
    await session.execute(
        "CREATE CONSTRAINT TRIGGER cut AFTER UPDATE ON numbers DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION cut()"
    )
    called: list[int] = []

    async def work(tx: Tx) -> None:
        tx.after_commit(lambda: called.append(1))
        await _set(tx, 1, 11)

    with pytest.raises(DatabaseUnavailable, match="lost during COMMIT") as caught:
        await database.run("commit", work)
    assert caught.value.outcome_unknown
    assert called == []


async def test_statements_and_lock_waits_are_bounded(dsn: str, sessions: Sessions) -> None:
    """A statement that runs too long and a lock that is not free in time are outages, with PostgreSQL's reason."""
    holder = await sessions.open()
    await holder.execute("UPDATE numbers SET value = 1 WHERE id = 1")
    async with open_database(dsn, min_size=1, max_size=1, statement_timeout_s=0.5, lock_timeout_s=0.1) as database:

        async def sleep(tx: Tx) -> None:
            await tx.execute("SELECT pg_sleep(10)")

        with pytest.raises(DatabaseUnavailable, match="statement timeout"):
            await database.run("slow", sleep)
        with pytest.raises(DatabaseUnavailable, match="lock timeout"):
            await database.run("waits", lambda tx: _set(tx, 1, 2))


async def test_a_cancelled_caller_leaves_no_transaction_behind(dsn: str, sessions: Sessions) -> None:
    """Cancelled within a statement: it is ended, rolled back, and the connection serves the next caller."""
    session = await sessions.open(autocommit=True)
    async with open_database(dsn, min_size=1, max_size=1) as database:
        started = asyncio.Event()

        async def work(tx: Tx) -> None:
            await _set(tx, 1, 11)
            started.set()
            await tx.execute("SELECT pg_sleep(20)")

        running = asyncio.create_task(database.run("cancelled", work))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await session.execute("SET lock_timeout = '15s'")  # a cancel is asked for by a connection of its own
        await session.execute("UPDATE numbers SET value = 5 WHERE id = 1")
        assert await _value(database) == 5


async def test_a_connection_that_is_closed_before_its_commit_is_no_success(database: Database) -> None:
    """psycopg leaves the block of a closed connection without a word; nothing was committed, and nobody may think so."""

    async def work(tx: Tx) -> None:
        await tx.execute("CREATE TABLE never (n integer)")
        await tx._open().close()  # pyright: ignore[reportPrivateUsage]

    with pytest.raises(DatabaseUnavailable) as caught:
        await database.run("closing", work)
    assert caught.value.outcome_unknown
    assert await database.read("look", lambda r: r.fetch_value("SELECT to_regclass('never')")) is None
