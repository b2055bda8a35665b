"""The reconciler: what a lost signal or a dead process left behind."""

import asyncio

from harness.postgres import DatabaseClock
from services.driver import Driver
from turnkeeper.kit.stop import StopSignal
from turnkeeper.services import hosts, reconcile
from turnkeeper.services.idempotency import request_key


async def test_a_missed_wake_up_is_repaired(driver: Driver) -> None:
    """Proves: D-01."""
    threads = [(await driver.conversation()).thread_id for _ in range(3)]
    runs = [(await driver.submit(thread)).run.id for thread in threads]
    await driver.rows("UPDATE runs SET ready_at = NULL")
    assert await reconcile.dispatch_stuck(driver.s) == 3
    assert [await driver.ready(run) for run in runs] == [True] * 3
    assert await reconcile.dispatch_stuck(driver.s) == 0


async def test_what_must_wait_still_waits(driver: Driver) -> None:
    """Proves: D-01: paused, quarantined, behind a fence, or without room."""
    thread = (await driver.conversation()).thread_id
    run = (await driver.submit(thread)).run.id
    await driver.rows("UPDATE conversations SET queue_paused = true")
    await reconcile.reconcile(driver.s)
    await driver.rows("UPDATE runs SET ready_at = NULL")
    await reconcile.reconcile(driver.s)
    assert not await driver.ready(run)
    await driver.rows("UPDATE conversations SET queue_paused = false")
    await driver.rows("UPDATE runs SET runtime_cleanup_pending = true")
    await reconcile.reconcile(driver.s)
    assert not await driver.ready(run)
    await driver.rows("UPDATE runs SET runtime_cleanup_pending = false")
    await reconcile.reconcile(driver.s)
    assert await driver.ready(run)


async def test_a_run_that_no_live_host_could_claim_fails(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: protocol 3: ten minutes, and only where no live host exists."""
    sent = await driver.submit((await driver.conversation()).thread_id)
    database_clock.offset(601)
    await driver.heartbeat()
    assert await reconcile.fail_unclaimed(driver.s) == 0
    database_clock.offset(601 + 61)
    assert await reconcile.mark_silent_hosts(driver.s) == 1
    assert (await hosts.list_servers(driver.s))[0].state == "gone"
    assert await reconcile.fail_unclaimed(driver.s) == 1
    run = await driver.run(sent.run.id)
    assert (run["status"], run["error_code"]) == ("failed", "sandbox_unavailable")
    assert await driver.delivery(sent.run.id) == "not_delivered"
    assert await reconcile.fail_unclaimed(driver.s) == 0
    await driver.heartbeat()
    assert (await hosts.list_servers(driver.s))[0].state == "ready"


async def test_a_silent_host_by_itself_ends_no_attempt(driver: Driver, database_clock: DatabaseClock) -> None:
    turn = await driver.up_to("prepared")
    database_clock.offset(100)
    await reconcile.reconcile(driver.s)
    assert (await driver.attempt(turn))["ended_at"] is None


async def test_old_answers_are_forgotten(driver: Driver, database_clock: DatabaseClock) -> None:
    thread = (await driver.conversation()).thread_id
    await driver.submit(thread, "x", idem=request_key("r", "k", {}))
    await reconcile.reconcile(driver.s)
    assert await driver.value("SELECT count(*) FROM idempotency_keys") == 1
    database_clock.offset(25 * 3600)
    await reconcile.forget(driver.s)
    assert await driver.value("SELECT count(*) FROM idempotency_keys") == 0


async def test_the_loop_gives_verdicts_that_were_lost(driver: Driver) -> None:
    """Proves: R-04 at this level: nothing stays quarantined."""
    turn = await driver.up_to("activated")
    await driver.rows("UPDATE memberships SET state = 'quarantined', fence = fence + 1")
    await driver.rows("UPDATE activations SET state = 'quarantined'")
    stop = StopSignal()
    task = asyncio.create_task(reconcile.run(driver.s, stop))
    async with asyncio.timeout(20):
        while (await driver.membership(turn.claim.thread_id))["state"] == "quarantined":
            assert not task.done()
        stop.set("test")
        await task
    assert (await driver.membership(turn.claim.thread_id))["state"] == "idle"
