"""The reaper: settles what nobody renews, by the stored facts, and nothing else."""

import asyncio
from datetime import datetime

import pytest

from harness.postgres import DatabaseClock, Sessions
from services.driver import HOST, Driver, Turn, wanted
from turnkeeper.kit.stop import StopSignal
from turnkeeper.services import hosts, reap
from turnkeeper.services.answers import Refused
from turnkeeper.services.cancel import cancel
from turnkeeper.services.finish import finish
from turnkeeper.services.prepare import prepare
from turnkeeper.services.renew import heartbeat
from turnkeeper.services.settle import settle
from turnkeeper.wire.host import GoneChild, HostHeartbeat
from turnkeeper.wire.public import Run
from turnkeeper.wire.worker import ExecutionSpec, Finish, FinishAnswer, Heartbeat, HeartbeatAnswer, Prepare


async def test_only_what_expired_two_seconds_ago_is_reaped(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: L-01, protocol 8: 2 s after the lease end, not earlier."""
    turn = await driver.up_to("claimed")
    database_clock.stand_at((await driver.attempt(turn))["lease_expires_at"])
    assert await reap.reap(driver.s) == 0
    database_clock.offset(121)
    assert await reap.reap(driver.s) == 0
    database_clock.offset(123)
    assert await reap.reap(driver.s) == 1
    assert await reap.reap(driver.s) == 0


@pytest.mark.parametrize(
    ("stage", "expected", "state"),
    [
        ("claimed", ("failed", "worker_lease_expired", "not_delivered"), None),
        ("prepared", ("failed", "worker_lease_expired", "not_delivered"), "idle"),
        ("activated", ("failed", "worker_lease_expired", "not_delivered"), "idle"),
        ("admitted", ("failed", "outcome_unknown", "unknown"), "lost"),
        ("settled", ("completed", None, "delivered"), "idle"),
    ],
)
async def test_a_worker_that_was_killed(
    driver: Driver, database_clock: DatabaseClock, stage: str, expected: tuple[str, str | None, str], state: str | None
) -> None:
    """Proves: A-01, A-03, A-05, R-02, R-05. Case: F02, a host killed right after the claim included."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.up_to(stage, thread)
    waiting = await driver.submit(thread, "next")
    database_clock.offset(123)
    assert await reap.reap(driver.s) == 1
    run = await driver.run(turn.claim.job)
    assert (run["status"], run["error_code"], await driver.delivery(turn.claim.job)) == expected
    assert (await driver.attempt(turn))["outcome"] == "lease_expired"
    assert await driver.value("SELECT state FROM memberships") == state
    kinds = [event["kind"] for event in await driver.events_of(thread) if event["run_id"] == turn.claim.job]
    assert kinds[-1] == "end"
    if state == "lost":
        assert (await driver.run(waiting.run.id))["error_code"] == "session_unavailable"
        assert await driver.value("SELECT state FROM conversations") == "lost"
    else:
        assert (await driver.claim()).claim.job == waiting.run.id


async def test_nothing_of_a_reaped_worker_is_accepted(driver: Driver, database_clock: DatabaseClock) -> None:
    """Case: F01, in the database: its heartbeat, events, settle and finish change nothing."""
    turn = await driver.up_to("admitted")
    database_clock.offset(123)
    await reap.reap(driver.s)
    before = await driver.rows("SELECT * FROM runs"), await driver.events_of(turn.claim.thread_id)
    assert isinstance(await heartbeat(driver.s, turn.worker, Heartbeat(lease_generation=turn.lease)), Refused)
    assert isinstance(await driver.send_events(turn, 1, "late"), Refused)
    assert isinstance(await settle(driver.s, turn.worker, driver.settle_request(turn)), Refused)
    request = Finish(lease_generation=turn.lease, status="completed")
    assert isinstance(await finish(driver.s, turn.worker, request), Refused)
    assert isinstance(
        await prepare(driver.s, turn.worker, Prepare(lease_generation=turn.lease, worker="host-1/100/200")), Refused
    )
    assert (await driver.rows("SELECT * FROM runs"), await driver.events_of(turn.claim.thread_id)) == before


async def test_reap_against_finish(driver: Driver, database_clock: DatabaseClock) -> None:
    """A finish that is accepted before the end wins; then the reaper finds nothing."""
    for _ in range(4):
        turn = await driver.up_to("settled")
        attempt = await driver.attempt(turn)
        await driver.rows(
            "UPDATE attempts SET lease_expires_at = tk_now() + interval '200 milliseconds' WHERE id = %s", attempt["id"]
        )
        await asyncio.gather(
            finish(driver.s, turn.worker, Finish(lease_generation=turn.lease, status="completed")),
            _reap_until_ended(driver, turn, database_clock),
        )
        assert (await driver.run(turn.claim.job))["status"] == "completed"
        assert (await driver.attempt(turn))["outcome"] in ("completed", "lease_expired")
        ends = [event for event in await driver.events_of(turn.claim.thread_id) if event["kind"] == "end"]
        assert len(ends) == 1
        database_clock.real()


async def _reap_until_ended(driver: Driver, turn: Turn, clock: DatabaseClock) -> None:
    clock.offset(2.5)
    while (await driver.attempt(turn))["ended_at"] is None:
        await reap.reap(driver.s)


async def test_reapers_at_once(driver: Driver, database_clock: DatabaseClock) -> None:
    turns = [await driver.up_to("prepared") for _ in range(3)]
    database_clock.offset(123)
    settled = await asyncio.gather(*(reap.reap(driver.s) for _ in range(4)))
    assert sum(settled) == len(turns)
    assert await driver.value("SELECT count(*) FROM events WHERE kind = 'end'") == len(turns)


async def test_a_renewed_lease_is_not_reaped(driver: Driver, database_clock: DatabaseClock) -> None:
    """The stale twin of the reaper's statement: what it read is older than a renewal."""
    turn = await driver.up_to("prepared")
    database_clock.offset(119)
    answer = await heartbeat(driver.s, turn.worker, Heartbeat(lease_generation=turn.lease))
    assert isinstance(answer, HeartbeatAnswer)
    database_clock.offset(123)
    stale = reap.ExpiredAttempt(turn.claim.attempt, turn.claim.job, turn.lease)
    assert not await reap.reap_one(driver.s, stale)
    database_clock.offset(119 + 121)  # over, and within the grace (protocol 8)
    assert not await reap.reap_one(driver.s, stale)
    database_clock.offset(119 + 123)
    assert not await reap.reap_one(driver.s, reap.ExpiredAttempt(stale.id, stale.run_id, stale.lease_generation + 1))
    assert await reap.reap_one(driver.s, stale)


async def test_a_cancelled_run_whose_worker_died(driver: Driver, database_clock: DatabaseClock) -> None:
    turn = await driver.up_to("settled")
    assert isinstance(await cancel(driver.s, driver.owner, turn.claim.job), Run)
    database_clock.offset(123)
    await reap.reap(driver.s)
    assert (await driver.run(turn.claim.job))["status"] == "cancelled"
    assert await driver.value("SELECT text FROM messages WHERE role = 'assistant'") == "done"


async def test_the_reaper_waits_for_the_next_lease_end(driver: Driver, database_clock: DatabaseClock) -> None:
    """It looks when something can have ended, at the latest after the shortest possible lease."""
    assert await reap.seconds_to_wait(driver.s) == driver.s.timing.lease_ttl_floor_s
    await driver.up_to("claimed")
    assert await reap.seconds_to_wait(driver.s) == driver.s.timing.lease_ttl_floor_s
    database_clock.offset(110)
    assert 5 < await reap.seconds_to_wait(driver.s) <= 12.1
    database_clock.offset(200)
    assert await reap.seconds_to_wait(driver.s) == 0


async def test_the_loop_reaps_by_itself_and_stops_when_told(driver: Driver, database_clock: DatabaseClock) -> None:
    turn = await driver.up_to("prepared")
    database_clock.offset(123)
    stop = StopSignal()
    task = asyncio.create_task(reap.run(driver.s, stop))
    async with asyncio.timeout(20):
        while (await driver.attempt(turn))["ended_at"] is None:
            assert not task.done()
        stop.set("test")
        await task


# ---- children that the host found gone ----


async def report(driver: Driver, turn: Turn, *, generation: int | None = None, host: str = HOST) -> None:
    gone = GoneChild(
        job=turn.claim.job,
        attempt=turn.claim.attempt,
        lease_generation=turn.lease if generation is None else generation,
    )
    await driver.heartbeat(host, gone=(gone,))


async def test_a_gone_child_ends_its_attempt_at_once(driver: Driver) -> None:
    turn = await driver.up_to("prepared")
    await report(driver, turn)
    run = await driver.run(turn.claim.job)
    assert (run["status"], run["error_code"]) == ("failed", "worker_lease_expired")
    assert run["error_detail"] == {"stage": "worker", "why": "child_gone"}
    assert (await driver.attempt(turn))["outcome"] == "failed"
    await report(driver, turn)


async def test_a_gone_child_that_was_admitted(driver: Driver) -> None:
    turn = await driver.up_to("admitted")
    await report(driver, turn)
    assert (await driver.run(turn.claim.job))["error_code"] == "outcome_unknown"
    assert await driver.value("SELECT state FROM memberships") == "lost"


async def test_stale_reports_of_gone_children_change_nothing(driver: Driver) -> None:
    """Another host's attempt, another generation, and a new incarnation by itself end nothing."""
    turn = await driver.up_to("prepared")
    await report(driver, turn, generation=turn.lease + 1)
    await report(driver, turn, host="another")
    answer = await hosts.heartbeat(
        driver.s,
        HOST,
        HostHeartbeat(
            incarnation="01900000-0000-7000-8000-000000000001",
            version="2",
            capacity=1,
            provisioner="prov-1",
            state="ready",
        ),
    )
    assert not answer.superseded
    assert (await driver.attempt(turn))["ended_at"] is None
    old = await hosts.heartbeat(
        driver.s,
        HOST,
        HostHeartbeat(incarnation=driver.incarnation, version="1", capacity=1, provisioner="prov-1", state="ready"),
    )
    assert old.superseded
    assert wanted(await heartbeat(driver.s, turn.worker, Heartbeat(lease_generation=turn.lease)), HeartbeatAnswer)
    request = Finish(lease_generation=turn.lease, status="failed")
    assert isinstance(await finish(driver.s, turn.worker, request), FinishAnswer)


async def test_renewals_touch_no_index_and_the_reaper_follows(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: L-11. What is renewed is looked at when its new end has come, and a renewal is a heap-only update."""
    turn = await driver.up_to("claimed")
    wanted(await prepare(driver.s, turn.worker, Prepare(lease_generation=turn.lease, worker="host/1/1")), ExecutionSpec)
    first_end = (await driver.attempt(turn))["lease_expires_at"]
    for seconds in (30, 60, 90, 119):
        database_clock.offset(seconds)
        wanted(await heartbeat(driver.s, turn.worker, Heartbeat(lease_generation=turn.lease)), HeartbeatAnswer)
        assert await _looks_at(driver, turn) == first_end
    database_clock.offset(123)
    assert await reap.look_later(driver.s)
    assert await reap.reap(driver.s) == 0
    assert await _looks_at(driver, turn) == (await driver.attempt(turn))["lease_expires_at"] > first_end
    indexed = await driver.rows("SELECT indexdef FROM pg_indexes WHERE tablename = 'attempts'")
    assert indexed
    assert not [
        row for row in indexed if "lease_expires_at" in row["indexdef"] or "last_heartbeat_at" in row["indexdef"]
    ]
    database_clock.offset(119 + 123)
    assert await reap.reap(driver.s) == 1


async def test_a_lease_that_is_cut_short_by_hand_is_looked_at_in_time(driver: Driver) -> None:
    """Proves: L-11. Whoever lowers the end of a lease, the moment of the look is lowered with it."""
    turn = await driver.up_to("claimed")
    await driver.value(
        "UPDATE attempts SET lease_expires_at = tk_now() - interval '1 minute' WHERE id = %s RETURNING 1",
        turn.claim.attempt,
    )
    assert await reap.seconds_to_wait(driver.s) == 0
    assert await reap.reap(driver.s) == 1


async def test_a_locked_attempt_is_looked_at_by_the_next_round(
    driver: Driver, sessions: Sessions, database_clock: DatabaseClock
) -> None:
    """What somebody holds holds up no round, and no round turns in circles for it."""
    turn = await driver.up_to("claimed")
    database_clock.offset(60)
    wanted(await heartbeat(driver.s, turn.worker, Heartbeat(lease_generation=turn.lease)), HeartbeatAnswer)
    database_clock.offset(123)
    holder = await sessions.open()
    await holder.execute("SELECT 1 FROM attempts WHERE id = %s FOR NO KEY UPDATE", (turn.claim.attempt,))
    assert not await reap.look_later(driver.s)
    await holder.rollback()
    assert await reap.look_later(driver.s)


async def _looks_at(driver: Driver, turn: Turn) -> datetime:
    return await driver.value("SELECT reaper_looks_at FROM attempts WHERE id = %s", turn.claim.attempt)
