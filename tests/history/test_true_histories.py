"""True histories have no finding: whatever the services write on a real PostgreSQL, at every moment of it."""

import asyncio
from dataclasses import replace

import pytest

from harness.postgres import DatabaseClock
from services.driver import HOST, Driver
from services.test_random_histories import Actor, World, to_rest
from services.trees import add_child
from turnkeeper.domain.history import Finding, check, check_succession
from turnkeeper.domain.history.facts import LedgerEntry
from turnkeeper.services import cleanup, conversations, hosts, reap, reconcile
from turnkeeper.services.abandon import abandon
from turnkeeper.services.cancel import cancel
from turnkeeper.services.doctor import collect, examine
from turnkeeper.services.finish import finish
from turnkeeper.services.release import release
from turnkeeper.wire.host import GoneChild, HostHeartbeat
from turnkeeper.wire.turn import Outcome, SnapshotResult
from turnkeeper.wire.worker import Abandon, FailureReport, Finish, Release

NEVER_LATE_S = 1e9
SNAPSHOT = SnapshotResult(tree_id="a" * 40)


async def no_finding(driver: Driver, *, slack_s: float = 60.0, ledger: list[str] | None = None) -> None:
    """By the whole in one snapshot, and by the doctor's pages."""
    entries = None if ledger is None else [LedgerEntry(text) for text in ledger]
    history = await collect(driver.s.db, driver.s.timing, ledger=entries, slack_s=slack_s)
    assert history.runs
    assert check(history) == []
    found: list[Finding] = []
    examined = await examine(driver.s.db, driver.s.timing, found.append, slack_s=slack_s, scopes_max=2, runs_max=3)
    assert found == []
    assert (examined.scopes, examined.runs) == (
        len({one.runtime_scope_id for one in history.conversations}),
        len(history.runs),
    )


async def test_whole_turns(driver: Driver) -> None:
    """At every step of three turns of one conversation, beside another one. Proves: A-03, A-04, A-05, F-06."""
    await driver.whole_turn((await driver.conversation()).thread_id, "another")
    thread = (await driver.conversation()).thread_id
    received = ["another"]
    for text in ("one", "two", "three"):
        await driver.submit(thread, text)
        await no_finding(driver, ledger=received)
        turn = await driver.claim()
        for step in (driver.prepare, driver.record, driver.activate, driver.admit):
            await step(turn)
            await no_finding(driver, ledger=received)
        received.append(text)
        await driver.send_events(turn, 1, "a", "b")
        await driver.settle(turn)
        await no_finding(driver, ledger=received)
        await driver.send_events(turn, 3, "c")
        await driver.finish(turn, snapshot=SNAPSHOT)
        await no_finding(driver, ledger=received)


@pytest.mark.parametrize("stage", ["claimed", "prepared", "recorded", "activated", "admitted", "settled"])
@pytest.mark.parametrize("how", ["reaped", "gone", "failed", "cancelled"])
async def test_a_turn_that_ends_at_any_stage(
    driver: Driver, database_clock: DatabaseClock, stage: str, how: str
) -> None:
    """By the reaper, by its host, by its own word, by a cancel; then the next message. Proves: R-01, R-02, R-05."""
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    turn = await driver.up_to(stage, thread)
    await driver.submit(thread, "next")
    await no_finding(driver)
    if how == "reaped":
        database_clock.offset(150)
        await no_finding(driver)
        await reap.reap(driver.s)
    elif how == "gone":
        gone = GoneChild(job=turn.claim.job, attempt=turn.claim.attempt, lease_generation=turn.lease)
        beat = HostHeartbeat(
            incarnation=driver.incarnation, version="1", capacity=8, provisioner="prov-1", state="ready", gone=(gone,)
        )
        await hosts.heartbeat(driver.s, HOST, beat)
    else:
        if how == "cancelled":
            await cancel(driver.s, driver.owner, turn.claim.job)
            await no_finding(driver)
        await driver.finish(turn, how)
    await no_finding(driver)
    await to_the_end(driver)
    await no_finding(driver)


async def to_the_end(driver: Driver) -> None:
    """The loops, and whatever can be claimed is carried out."""
    await reconcile.reconcile(driver.s)
    for one in await driver.rows("SELECT DISTINCT runtime_scope_id, uid FROM runs WHERE runtime_cleanup_pending"):
        assert await cleanup.clean_scope(driver.s, one["runtime_scope_id"], one["uid"])
    answer = await driver.try_claim()
    if answer.claim is not None:
        turn = driver.turn_of(answer.claim)
        for step in (driver.prepare, driver.record, driver.activate, driver.admit, driver.settle):
            await step(turn)
        await driver.finish(turn)


async def test_releases_until_there_are_too_many(driver: Driver) -> None:
    """Proves: A-01, H-05."""
    thread = (await driver.conversation()).thread_id
    await driver.submit(thread)
    for _ in range(3):
        turn = await driver.claim()
        await release(driver.s, turn.worker, Release(lease_generation=turn.lease, why="not_created"))
        await no_finding(driver)
    assert await driver.value("SELECT status FROM runs") == "failed"


async def test_an_abandoned_turn_and_one_that_activates_twice(driver: Driver) -> None:
    """Proves: R-01. The same attempt activates again in another instance."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to("activated", thread)
    turn.generation, turn.boot_id = "gen-2", "boot-2"
    await driver.container(turn)
    await driver.activate(turn)
    await no_finding(driver)
    request = Abandon(lease_generation=turn.lease, activation=turn.act.activation, fence=turn.act.fence)
    assert await abandon(driver.s, turn.worker, request) is None
    await no_finding(driver)
    await driver.finish(turn, "failed", failure=FailureReport(code="preparation_failed", stage="setup", delivered="no"))
    await driver.whole_turn(thread)
    await no_finding(driver)


@pytest.mark.parametrize("code", ["session_unavailable", "preparation_failed"])
async def test_a_session_that_is_not_there(driver: Driver, code: str) -> None:
    """Lost without an admission, which only this code does. Proves: R-07."""
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    turn = await driver.up_to("activated", thread)
    await driver.submit(thread, "waits")
    failure = FailureReport(code=code, stage="session", delivered="no")
    await finish(driver.s, turn.worker, Finish(lease_generation=turn.lease, status="failed", failure=failure))
    await no_finding(driver)
    await to_the_end(driver)
    await no_finding(driver)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
async def test_settled_with_another_outcome(driver: Driver, outcome: Outcome) -> None:
    """Proves: F-06: it counts like any other."""
    turn = await driver.up_to("admitted")
    await driver.settle(turn, outcome=outcome)
    await driver.finish(turn, "failed")
    await driver.whole_turn(turn.claim.thread_id)
    await no_finding(driver)


async def test_an_ephemeral_conversation_and_its_fence(driver: Driver) -> None:
    """Proves: C-01. A message that waits behind the fence; one that is cancelled there; a close, and a second fence."""
    await driver.add_agent("brief", runtime_policy="ephemeral", new_session_per_turn=True)
    thread = (await driver.conversation(agent="brief")).thread_id
    await driver.whole_turn(thread)
    await no_finding(driver)
    behind = await driver.submit(thread, "behind")
    await no_finding(driver)
    await to_the_end(driver)
    await no_finding(driver)
    assert (await driver.run(behind.run.id))["status"] == "completed"
    await to_the_end(driver)
    turn = await driver.up_to("admitted", thread)
    waiting = await driver.submit(thread, "never")
    await cancel(driver.s, driver.owner, waiting.run.id)
    await driver.settle(turn)
    await driver.finish(turn)
    await no_finding(driver)
    await conversations.close(driver.s, driver.owner, thread)
    await no_finding(driver)
    await to_the_end(driver)
    await no_finding(driver)


@pytest.mark.parametrize("stage", [None, "prepared", "admitted", "settled"])
async def test_closing(driver: Driver, stage: str | None) -> None:
    """With nothing, and with a turn at work. Proves: D-02."""
    await driver.whole_turn((await driver.conversation()).thread_id)
    thread = (await driver.conversation()).thread_id
    turn = None if stage is None else await driver.up_to(stage, thread)
    await conversations.close(driver.s, driver.owner, thread)
    await no_finding(driver)
    if turn is not None:
        await driver.finish(turn, "cancelled")
        await no_finding(driver)
        await to_the_end(driver)
        await no_finding(driver)


async def test_a_tree_whose_root_ends_first(driver: Driver) -> None:
    """The child is asked to stop; the next message waits for it. Proves: D-01."""
    turn = await driver.up_to("admitted")
    await add_child(driver, turn.claim.job)
    child = await driver.claim()
    for step in (driver.prepare, driver.record, driver.activate, driver.admit):
        await step(child)
    await driver.settle(turn)
    await driver.finish(turn)
    await driver.submit(turn.claim.thread_id, "next")
    await no_finding(driver)
    await driver.finish(child, "cancelled")
    await no_finding(driver)
    await to_the_end(driver)
    await no_finding(driver)


async def test_what_waits_for_a_reason(driver: Driver) -> None:
    """A line, a paused queue, an owner without room: an hour later nothing of it is stuck. Proves: D-01, D-06."""
    await driver.rows("UPDATE users SET tree_room = 1")
    first = await driver.up_to("admitted")
    await driver.submit(first.claim.thread_id, "in line")
    waits_for_room = (await driver.conversation()).thread_id
    await driver.submit(waits_for_room)
    paused = (await driver.conversation()).thread_id
    await driver.rows("UPDATE conversations SET queue_paused = true WHERE thread_id = %s", paused)
    await driver.submit(paused)
    history = await collect(driver.s.db, driver.s.timing)
    late = replace(history, now=history.now.replace(year=history.now.year + 1))
    findings = check(late)
    assert [finding.subject for finding in findings] == [first.claim.job], "its lease has ended; the others wait for it"


@pytest.mark.timeout(300)
async def test_random_histories_at_every_moment(driver: Driver, database_clock: DatabaseClock) -> None:
    """Actors and faults of `tests/services`; meanwhile somebody looks again and again.

    The clock jumps there, so that leases end long before anybody could have noticed: what is late is asked at the end.
    """
    world = World(driver, database_clock, [(await driver.conversation()).thread_id for _ in range(4)])
    over = asyncio.Event()
    looks = 0

    async def look() -> None:
        nonlocal looks
        before = await collect(driver.s.db, driver.s.timing)
        while not over.is_set():
            history = await collect(driver.s.db, driver.s.timing, slack_s=NEVER_LATE_S)
            assert check(history) == []
            assert check_succession(before, history) == []
            before = history
            looks += 1

    looking = asyncio.create_task(look())
    try:
        await asyncio.gather(*(Actor(world, 700 + number).run() for number in range(4)))
    finally:
        over.set()
        await looking
    assert looks > 10
    await to_rest(world)
    await no_finding(driver)
    assert world.sent
