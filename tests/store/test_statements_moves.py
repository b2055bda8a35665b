"""Statements that move runs, attempts and memberships without a worker's lease, and their stale twins."""

import pytest

from harness.postgres import Sessions
from harness.rows import Rows
from turnkeeper.kit.ids import digest, new_id
from turnkeeper.store import attempts, cleanup, dispatch, events, holds, memberships, runs
from turnkeeper.store.errors import ConstraintViolation
from turnkeeper.store.events import NewEvent
from turnkeeper.store.locks import lock_event_counter, lock_owner, lock_scope
from turnkeeper.store.tx import Database, Tx


@pytest.fixture
async def rows(sessions: Sessions) -> Rows:
    """Rows on a session that commits by itself."""
    return Rows(await sessions.open(autocommit=True))


async def test_a_run_ends_once_and_from_the_named_state(database: Database, rows: Rows) -> None:
    """Proves: A-03."""
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")

    async def end(source: str) -> int:
        return await database.run(
            "test",
            lambda tx: runs.end_run(
                tx, run, source=source, status="failed", error_code="no_output", error_detail={"a": 1}
            ),
        )

    assert await end("pending") == 0
    assert await end("running") == 1
    assert await end("running") == 0
    with pytest.raises(ConstraintViolation) as caught:
        await database.run("test", lambda tx: tx.execute("UPDATE runs SET status = 'completed', error_code = NULL"))
    assert caught.value.constraint == "runs_terminal_is_absorbing"


async def test_a_claim_moves_only_what_is_ready(database: Database, rows: Rows) -> None:
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread)
    assert await database.run("test", lambda tx: runs.mark_claimed(tx, run)) == 0
    await rows.session.execute("UPDATE runs SET ready_at = tk_now(), cancel_requested_at = tk_now()")
    assert await database.run("test", lambda tx: runs.mark_claimed(tx, run)) == 0
    await rows.session.execute("UPDATE runs SET cancel_requested_at = NULL")
    assert await database.run("test", lambda tx: runs.mark_claimed(tx, run)) == 1
    assert await database.run("test", lambda tx: runs.mark_claimed(tx, run)) == 0
    assert await database.run("test", lambda tx: runs.mark_released(tx, run)) == 1
    assert await database.run("test", lambda tx: runs.mark_released(tx, run)) == 0


async def test_the_claim_takes_the_longest_ready_that_nobody_holds(
    database: Database, rows: Rows, sessions: Sessions
) -> None:
    found: list[str | None] = []
    uid = await rows.user()
    made: list[str] = []
    for number in range(3):
        run = await rows.run(uid, await rows.conversation(uid), provisioner=None if number else "p2")
        await rows.session.execute("UPDATE runs SET ready_at = tk_now() WHERE id = %s", (run,))
        made.append(run)

    async def look(tx: Tx, provisioner: str = "p1", any_tree: bool = True, trees: tuple[str, ...] = ()) -> None:
        row = await runs.lock_claimable(tx, provisioner=provisioner, any_tree=any_tree, trees=list(trees))
        found.append(None if row is None else row.id)

    await database.run("test", look)
    await database.run("test", lambda tx: look(tx, "p2"))
    await database.run("test", lambda tx: look(tx, any_tree=False))
    await database.run("test", lambda tx: look(tx, any_tree=False, trees=(made[2],)))
    holder = await sessions.open()
    await holder.execute("SELECT 1 FROM runs WHERE id = %s FOR NO KEY UPDATE", (made[1],))
    await database.run("test", look)
    assert found == [made[1], made[0], None, made[2], made[2]]


async def test_the_claim_reads_the_index_of_ready_runs(database: Database, rows: Rows) -> None:
    """Proves: protocol 3: the cost of a claim grows neither with history nor with waiting runs."""
    uid, thread = await rows.chat()
    await rows.session.execute(
        "INSERT INTO runs (id, thread_id, uid, agent, kind, runtime_scope_id, root_run_id, request_id, prompt) "
        "SELECT id, %(t)s, %(u)s, 'scripted', 'chat', %(t)s, id, gen_random_uuid(), 'x' "
        "FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 3000)) s",
        {"t": thread, "u": uid},
    )
    await rows.session.execute("UPDATE runs SET ready_at = tk_now() WHERE id IN (SELECT id FROM runs LIMIT 50)")
    await rows.session.execute("ANALYZE runs")

    async def plan(tx: Tx) -> str:
        found = await tx.fetch_all(
            "EXPLAIN SELECT id FROM runs WHERE ready_at IS NOT NULL AND (provisioner IS NULL OR provisioner = 'p') "
            "AND (true OR root_run_id = ANY('{}'::uuid[])) ORDER BY ready_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED"
        )
        return "\n".join(str(row["QUERY PLAN"]) for row in found)

    text = await database.run("test", plan)
    assert "runs_ready" in text
    assert "Seq Scan" not in text


async def test_one_attempt_for_one_claim_id(database: Database, rows: Rows) -> None:
    """Proves: D-05, A-01."""
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")
    incarnation, claim_id = new_id(), new_id()

    async def insert(claim: str) -> attempts.AttemptRow | None:
        return await database.run(
            "test",
            lambda tx: attempts.insert_attempt(
                tx, attempt_id=new_id(), run_id=run, root_run_id=run, host="h", incarnation=incarnation, claim_id=claim,
                token_hash=digest(new_id()), lease_ttl_s=120, agent="scripted", execution_timeout_s=3600, drain_s=60,
            ),
        )  # fmt: skip

    first = await insert(claim_id)
    assert first is not None
    assert (first.attempt_no, first.lease_owner) == (1, f"h/{incarnation}")
    assert (first.lease_expires_at - first.claimed_at).total_seconds() == 120
    assert (first.renewable_until - first.claimed_at).total_seconds() == 3660
    assert await insert(claim_id) is None
    with pytest.raises(ConstraintViolation) as caught:
        await insert(new_id())
    assert caught.value.constraint == "attempts_one_open_per_run"
    await rows.session.execute("UPDATE attempts SET ended_at = tk_now(), outcome = 'released'")
    second = await insert(new_id())
    assert second is not None
    assert second.attempt_no == 2
    assert second.lease_generation > first.lease_generation


async def test_the_reapers_close_looks_again(database: Database, rows: Rows) -> None:
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")
    attempt = await rows.attempt(run)
    generation = await rows.value("SELECT lease_generation FROM attempts")

    async def close(wanted: int) -> int:
        return await database.run(
            "test", lambda tx: attempts.close_expired(tx, attempt, lease_generation=wanted, grace_s=2)
        )

    assert await close(generation) == 0
    await rows.session.execute("UPDATE attempts SET lease_expires_at = tk_now() - interval '1 second'")
    assert await close(generation) == 0
    await rows.session.execute("UPDATE attempts SET lease_expires_at = tk_now() - interval '3 seconds'")
    assert await close(generation + 1) == 0
    assert await close(generation) == 1
    assert await close(generation) == 0


async def test_a_hosts_report_closes_its_own_attempt_alone(database: Database, rows: Rows) -> None:
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")
    attempt = await rows.attempt(run, host="mine")
    generation = await rows.value("SELECT lease_generation FROM attempts")

    async def close(host: str, wanted: int) -> int:
        return await database.run(
            "test", lambda tx: attempts.close_gone(tx, attempt, lease_generation=wanted, host=host)
        )

    assert await close("another", generation) == 0
    assert await close("mine", generation + 1) == 0
    assert await close("mine", generation) == 1
    assert await close("mine", generation) == 0


async def test_a_token_is_refreshed_until_acceptance(database: Database, rows: Rows) -> None:
    """Proves: D-05."""
    uid, thread = await rows.chat()
    attempt = await rows.attempt(await rows.run(uid, thread, status="running"))

    async def refresh() -> int:
        return await database.run("test", lambda tx: attempts.refresh_token(tx, attempt, digest(new_id())))

    assert await refresh() == 1
    await rows.session.execute("UPDATE attempts SET lease_expires_at = tk_now() - interval '1 second'")
    assert await refresh() == 0
    await rows.session.execute(
        "UPDATE attempts SET lease_expires_at = tk_now() + interval '1 hour', accepted_at = tk_now()"
    )
    assert await refresh() == 0


async def test_verdicts_name_state_and_fence(database: Database, rows: Rows) -> None:
    """Proves: R-05: of several who decide one wins, and LOST is final."""
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread, status="running")
    membership = await rows.membership(await rows.workspace(uid, thread), thread)
    activation = await rows.activation(membership, run, await rows.attempt(run), 1)
    await rows.update("memberships", membership, state="active", activation_id=activation, fence=1)

    async def quarantine(fence: int) -> int:
        return await database.run(
            "test",
            lambda tx: memberships.quarantine(tx, membership_id=membership, activation_id=activation, fence=fence),
        )

    async def lose(fence: int, source: str = "quarantined") -> int:
        return await database.run(
            "test",
            lambda tx: memberships.lose(tx, membership_id=membership, fence=fence, source=source, reason="x"),
        )

    async def leave(fence: int) -> int:
        return await database.run(
            "test",
            lambda tx: memberships.leave(
                tx, membership_id=membership, activation_id=activation, fence=fence, source="quarantined", state="idle"
            ),
        )

    assert await quarantine(2) == 0
    assert await quarantine(1) == 1
    assert await quarantine(2) == 0
    assert await leave(1) == 0
    assert await lose(1) == 0
    assert await lose(2) == 1
    assert await lose(2) == 0
    assert await leave(2) == 0
    assert await lose(2, "lost") == 1
    with pytest.raises(ConstraintViolation) as caught:
        await database.run("test", lambda tx: tx.execute("UPDATE memberships SET state = 'idle', lost_reason = NULL"))
    assert caught.value.constraint == "membership_lost_is_final"


async def test_a_hold_ends_only_for_a_closed_or_lost_conversation(database: Database, rows: Rows) -> None:
    """Proves: D-02."""
    uid, thread = await rows.chat()

    async def take(tx: Tx) -> None:
        await holds.insert_hold(tx, hold_id=new_id(), uid=uid, workdir="src", runtime_scope_id=thread)

    await database.run("test", take)
    assert await database.run("test", lambda tx: holds.end_hold(tx, thread, "why")) == 0
    for state in ("closed", "lost"):
        await rows.session.execute("UPDATE conversations SET state = %s", (state,))
        assert await database.run("test", lambda tx: holds.end_hold(tx, thread, "why")) == 1
        assert await database.run("test", lambda tx: holds.end_hold(tx, thread, "why")) == 0
        await database.run("test", take)


async def test_readiness_is_set_and_cleared_on_waiting_runs_alone(database: Database, rows: Rows) -> None:
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread)
    assert await database.run("test", lambda tx: dispatch.set_ready(tx, run, "p")) == 1
    assert await rows.value("SELECT provisioner FROM runs") == "p"
    assert await database.run("test", lambda tx: dispatch.set_ready(tx, run, None)) == 0
    assert await database.run("test", lambda tx: dispatch.clear_ready(tx, [run])) == 1
    assert await database.run("test", lambda tx: dispatch.clear_ready(tx, [run])) == 0
    await rows.update("runs", run, status="running")
    assert await database.run("test", lambda tx: dispatch.set_ready(tx, run, "p")) == 0


async def test_the_fence_is_carried_by_the_newest_root_run(database: Database, rows: Rows) -> None:
    """Proves: C-01, C-02 at the statements."""
    uid, thread = await rows.chat()

    async def up(tx: Tx) -> str | None:
        await lock_scope(tx, thread)
        return await cleanup.raise_fence(tx, thread)

    async def facts(tx: Tx) -> cleanup.CleanupFacts | None:
        await lock_scope(tx, thread)
        return await cleanup.facts(tx, thread)

    async def down(tx: Tx) -> list[str]:
        await lock_scope(tx, thread)
        return await cleanup.clear_fence(tx, thread)

    assert await database.run("test", up) is None
    first = await rows.run(uid, thread, status="running")
    second = await rows.run(uid, thread)
    await rows.update("runs", second, ready_at=await rows.value("SELECT tk_now()"))
    await rows.attempt(first)
    assert await database.run("test", up) == second
    assert await rows.value("SELECT ready_at FROM runs WHERE id = %s", second) is None
    assert await database.run("test", up) == second
    found = await database.run("test", facts)
    assert found is not None
    assert (found.fence_up, found.active, found.sandbox_id) == (True, True, None)
    assert found.lease_generation == await rows.value("SELECT lease_generation FROM attempts")
    assert await database.run("test", down) == [second]
    assert await database.run("test", down) == []


async def test_events_are_numbered_from_the_locked_counter(database: Database, rows: Rows) -> None:
    """Proves: A-03. Case: F13."""
    uid, thread = await rows.chat()
    run = await rows.run(uid, thread)
    await rows.insert("event_counters", thread_id=thread, last_seq=2147483646)

    async def append(tx: Tx, kind: str, count: int = 2) -> int:
        last = await lock_event_counter(tx, thread)
        return await events.append(tx, thread, last, [NewEvent(run, kind, {"n": n, "b": 2**40}) for n in range(count)])

    assert await database.run("test", lambda tx: append(tx, "text")) == 2147483648
    assert await database.run("test", lambda tx: append(tx, "end", 1)) == 2147483649
    with pytest.raises(ConstraintViolation) as caught:
        await database.run("test", lambda tx: append(tx, "text"))
    assert caught.value.constraint == "events_end_is_last"
    with pytest.raises(ConstraintViolation):
        await database.run("test", lambda tx: append(tx, "end", 1))
    page = await database.read("test", lambda r: events.list_by_thread(r, thread, after=2147483647, limit=10))
    assert [row.seq for row in page] == [2147483648, 2147483649]
    assert page[0].data == {"n": 1, "b": 2**40}


async def test_an_owners_trees_are_counted_once_each(database: Database, rows: Rows) -> None:
    """Proves: D-06: a tree with several live runs is one."""
    uid, thread = await rows.chat()
    root = await rows.run(uid, thread, status="running")
    await rows.subagent(uid, thread, thread, root, root, 1, status="running")
    await rows.run(uid, await rows.conversation(uid))
    ready = await rows.run(uid, await rows.conversation(uid), ready_at=await rows.value("SELECT tk_now()"))

    async def trees(tx: Tx, but_scope: str = thread) -> list[str]:
        await lock_owner(tx, uid)
        found = await dispatch.trees_of_owner(tx, uid, but_scope=but_scope, waiting_max=2)
        held = sorted(tree.root_run_id for tree in found if tree.wanted_at is None)
        return held + [tree.root_run_id for tree in found if tree.wanted_at is not None]

    assert await database.run("test", trees) == sorted([root, ready])
    waiting = [await rows.run(uid, await rows.conversation(uid)) for _ in range(3)]
    for run in reversed(waiting):
        assert await database.run("test", lambda tx, run=run: dispatch.set_room_wanted(tx, [run])) == 1
        assert await database.run("test", lambda tx, run=run: dispatch.set_room_wanted(tx, [run])) == 0
    assert await database.run("test", trees) == [*sorted([root, ready]), waiting[2], waiting[1]]
    scope = await rows.value("SELECT runtime_scope_id FROM runs WHERE id = %s", waiting[2])
    assert (await database.run("test", lambda tx: trees(tx, scope)))[2:] == [waiting[1], waiting[0]]
    assert await database.run("test", lambda tx: dispatch.set_ready(tx, waiting[2], None)) == 1
    assert await database.run("test", lambda tx: dispatch.set_room_wanted(tx, [waiting[2], root])) == 0
    assert await database.run("test", lambda tx: dispatch.clear_ready(tx, [waiting[1]])) == 1
    assert await rows.value("SELECT count(*) FROM runs WHERE room_wanted_at IS NOT NULL") == 1
