"""The doctor's statements: what they read, and that none of them walks through a whole table."""

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg

from harness.rows import Rows
from turnkeeper.domain.settings import Timing
from turnkeeper.store import history
from turnkeeper.store.history import FIRST, ScopeSize
from turnkeeper.store.pool import adapters
from turnkeeper.store.tx import Database, Params, Reader

NOW = "2026-01-01T00:00:0{}Z"


class Types:
    """What psycopg asks for the types of a connection."""

    def __init__(self) -> None:
        self.adapters = adapters()
        self.connection = None


class Explaining(Reader):
    """A reader that has each statement explained before it runs it."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__("explain", connection)
        self.connection = connection
        self.plans: list[str] = []

    async def explain(self, sql: LiteralString, params: Params) -> None:
        """Keep the plan."""
        async with self.connection.cursor() as cursor:
            await cursor.execute("EXPLAIN " + sql, params)
            self.plans.append("\n".join(row[0] for row in await cursor.fetchall()))

    async def fetch_all(self, sql: LiteralString, params: Params = (), *, as_: type[Any] | None = None) -> list[Any]:
        """As it is, explained."""
        await self.explain(sql, params)
        return await super().fetch_all(sql, params, as_=as_)


async def conversation_with(rows: Rows, runs: int, uid: str) -> str:
    """A conversation and waiting runs."""
    thread = await rows.conversation(uid)
    for _ in range(runs):
        await rows.run(uid, thread)
    return thread


async def test_every_statement_goes_by_an_index(dsn: str) -> None:
    """Where the planner may choose: tables of a test are too small for it to choose an index by itself."""
    async with await psycopg.AsyncConnection[Any].connect(dsn, autocommit=True, context=Types()) as connection:
        rows = Rows(connection)
        uid = await rows.user()
        thread = await conversation_with(rows, 2, uid)
        await connection.execute("SET enable_seqscan = off")
        reader = Explaining(connection)
        await history.scopes_after(reader, FIRST, 10)
        await history.owners_with_holds(reader, FIRST, 10)
        await history.read_holds(reader, [uid], Timing())
        found = await history.read_scopes(reader, [thread], Timing())
        assert len(found.runs) == 2
        assert len(reader.plans) == 14, "one statement for each table, whatever the number of runs"
        assert [plan for plan in reader.plans if "Seq Scan" in plan] == []


async def test_scopes_come_in_pages_with_their_sizes(database: Database, dsn: str) -> None:
    """Subagents are counted with their scope and are no scope of their own."""
    async with await psycopg.AsyncConnection[Any].connect(dsn, autocommit=True, context=Types()) as connection:
        rows = Rows(connection)
        uid = await rows.user()
        threads = sorted([await conversation_with(rows, count, uid) for count in (0, 1, 2)])
        async with connection.transaction():
            parent = await rows.run(uid, threads[0])
            await rows.subagent(uid, threads[0], threads[0], parent, parent, 1)

    async def page(after: str, limit: int) -> Sequence[ScopeSize]:
        return await database.read("page", lambda reader: history.scopes_after(reader, after, limit))

    first = await page(FIRST, 2)
    assert [one.runtime_scope_id for one in first] == threads[:2]
    (last,) = await page(threads[1], 2)
    assert last.runtime_scope_id == threads[2]
    assert not await page(threads[2], 2)
    sizes = {one.runtime_scope_id: one.runs for one in (*first, last)}
    assert sum(sizes.values()) == 5
    assert sizes[threads[0]] >= 2


async def test_consecutive_events_become_one_span(database: Database, dsn: str) -> None:
    """Of one run and one attempt, ends apart; a gap begins a new span."""
    async with await psycopg.AsyncConnection[Any].connect(dsn, autocommit=True, context=Types()) as connection:
        rows = Rows(connection)
        uid = await rows.user()
        thread = await rows.conversation(uid)
        one, two = await rows.run(uid, thread), await rows.run(uid, thread)
        attempt = await rows.attempt(one)
        for seq, run, by, kind in (
            (1, one, None, "message"), (2, one, None, "run"), (3, one, attempt, "text"), (4, one, attempt, "text"),
            (5, two, None, "message"), (6, one, attempt, "text"), (8, one, attempt, "text"), (9, one, None, "end"),
        ):  # fmt: skip
            await rows.event(thread, run, seq, kind, attempt_id=by, created_at=NOW.format(seq))
    read = await database.snapshot_read("spans", lambda reader: history.read_scopes(reader, [thread], Timing()))
    spans = sorted(read.events, key=lambda span: span.first_seq)
    assert [(span.first_seq, span.last_seq, span.run_id == one, span.attempt_id, span.is_end) for span in spans] == [
        (1, 2, True, None, False),
        (3, 4, True, attempt, False),
        (5, 5, False, None, False),
        (6, 6, True, attempt, False),
        (8, 8, True, attempt, False),
        (9, 9, True, None, True),
    ]
    assert [span.last_at.second for span in spans] == [2, 4, 5, 6, 8, 9]
    assert spans[1].first_at.second == 3


async def test_prompts_are_read_only_where_they_are_asked_for(database: Database, dsn: str) -> None:
    """A prompt may be large, and only a ledger asks for it."""
    async with await psycopg.AsyncConnection[Any].connect(dsn, autocommit=True, context=Types()) as connection:
        rows = Rows(connection)
        thread = await conversation_with(rows, 1, await rows.user())
    for asked in (False, True):
        read = await database.read(
            "prompts", lambda reader, p=asked: history.read_scopes(reader, [thread], Timing(), prompts=p)
        )
        assert [run.prompt for run in read.runs] == (["hello"] if asked else [None])
