"""Cancelling: waiting runs end at once, running ones are asked, and asking again changes nothing."""

import asyncio

from harness.postgres import Sessions
from services.driver import Driver, wanted
from services.trees import add_child
from turnkeeper.services.cancel import cancel
from turnkeeper.services.finish import finish
from turnkeeper.services.signals import wait_for_signals
from turnkeeper.wire.public import Run
from turnkeeper.wire.worker import ClaimAnswer, Finish, FinishAnswer, Signals


async def cancelled(driver: Driver, run_id: str) -> Run:
    return wanted(await cancel(driver.s, driver.owner, run_id), Run)


async def test_a_waiting_run_ends_at_once(driver: Driver) -> None:
    """Proves: A-03, A-05, D-01: the next one of the line becomes ready in the same transaction."""
    thread = (await driver.conversation()).thread_id
    first, second = await driver.submit(thread, "one"), await driver.submit(thread, "two")
    answer = await cancelled(driver, first.run.id)
    assert (answer.status, answer.error_code) == ("cancelled", "cancelled")
    assert answer.error_text == "The turn was cancelled."
    assert await driver.delivery(first.run.id) == "not_delivered"
    assert await driver.ready(second.run.id)
    assert await cancelled(driver, first.run.id) == answer
    ends = [event for event in await driver.events_of(thread) if event["kind"] == "end"]
    assert len(ends) == 1
    assert (await driver.claim()).claim.job == second.run.id


async def test_a_running_run_is_asked(driver: Driver) -> None:
    turn = await driver.up_to("admitted")
    answer = await cancelled(driver, turn.claim.job)
    assert answer.status == "cancel_requested"
    attempt = await driver.attempt(turn)
    assert (attempt["renewable_until"] - answer.cancel_requested_at).total_seconds() < 71  # type: ignore[operator]
    again = await cancelled(driver, turn.claim.job)
    assert again == answer
    assert (await driver.attempt(turn))["renewable_until"] == attempt["renewable_until"]
    states = [
        event["data"]["status"] for event in await driver.events_of(turn.claim.thread_id) if event["kind"] == "run"
    ]
    assert states == ["pending", "running", "cancel_requested"]


async def test_a_worker_that_waits_is_told(driver: Driver) -> None:
    """Proves: T-03."""
    turn = await driver.up_to("admitted")
    waiting = asyncio.create_task(wait_for_signals(driver.s, turn.worker, wait_s=25))
    await cancelled(driver, turn.claim.job)
    async with asyncio.timeout(10):
        assert await waiting == Signals(cancel_requested=True)
    assert await wait_for_signals(driver.s, turn.worker, wait_s=25) == Signals(cancel_requested=True)
    await driver.finish(turn, "cancelled")
    assert (await wait_for_signals(driver.s, turn.worker, wait_s=25)).ended


async def test_an_ended_run_stays_as_it_is(driver: Driver) -> None:
    """Proves: A-03."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.whole_turn(thread)
    events = await driver.events_of(thread)
    answer = await cancelled(driver, turn.claim.job)
    assert (answer.status, answer.cancel_requested_at) == ("completed", None)
    assert await driver.events_of(thread) == events


async def test_a_recovering_run_keeps_its_state(driver: Driver) -> None:
    turn = await driver.up_to("admitted")
    await driver.rows("UPDATE attempts SET ended_at = tk_now(), outcome = 'lease_expired'")
    await driver.rows("UPDATE runs SET status = 'recovering'")
    answer = await cancelled(driver, turn.claim.job)
    assert answer.status == "recovering"
    assert answer.cancel_requested_at is not None


async def test_cancel_against_claim(driver: Driver) -> None:
    """Whichever is first: the run is cancelled before it starts, or asked to stop; it is never both claimed and ended."""
    for _ in range(8):
        sent = await driver.submit((await driver.conversation()).thread_id)
        one, two = await asyncio.gather(driver.try_claim(), cancelled(driver, sent.run.id))
        claimed = wanted(one, ClaimAnswer).claim
        assert two.status == ("cancelled" if claimed is None else "cancel_requested")
        if claimed is not None:
            assert await driver.finish(driver.turn_of(claimed), "cancelled") == "cancelled"


async def test_a_claim_skips_a_run_that_is_being_cancelled(driver: Driver, sessions: Sessions) -> None:
    """A claim waits for nobody."""
    first = await driver.submit((await driver.conversation()).thread_id)
    second = await driver.submit((await driver.conversation()).thread_id)
    holder = await sessions.open()
    await holder.execute("SELECT 1 FROM runs WHERE id = %s FOR NO KEY UPDATE", (first.run.id,))
    assert (await driver.claim()).claim.job == second.run.id
    await holder.rollback()
    assert (await driver.claim()).claim.job == first.run.id


async def test_cancel_against_finish(driver: Driver) -> None:
    for _ in range(6):
        turn = await driver.up_to("settled")
        request = Finish(lease_generation=turn.lease, status="completed")
        one, two = await asyncio.gather(finish(driver.s, turn.worker, request), cancelled(driver, turn.claim.job))
        status = wanted(one, FinishAnswer).status
        row = await driver.run(turn.claim.job)
        assert row["status"] == status
        assert (status == "completed") == (row["cancel_requested_at"] is None)
        assert two.status in ("completed", "cancel_requested")


async def test_cancelling_a_tree_reaches_every_descendant(driver: Driver) -> None:
    """Proves: T-01, T-06 at this level: a waiting child ends, a running one is asked, in one transaction."""
    root = await driver.up_to("admitted")
    running, waiting = await add_child(driver, root.claim.job), await add_child(driver, root.claim.job)
    grandchild = await add_child(driver, running)
    turn = await driver.claim()
    jobs = {turn.claim.job}
    assert jobs < {running, waiting, grandchild}
    await cancelled(driver, root.claim.job)
    states = {run: (await driver.run(run))["status"] for run in (running, waiting, grandchild)}
    assert states.pop(turn.claim.job) == "cancel_requested"
    assert set(states.values()) == {"cancelled"}
    assert (await driver.run(root.claim.job))["status"] == "cancel_requested"


async def test_a_parents_end_stops_its_descendants(driver: Driver) -> None:
    """Proves: T-06 at this level."""
    root = await driver.up_to("settled")
    waiting = await add_child(driver, root.claim.job)
    await driver.finish(root)
    row = await driver.run(waiting)
    assert (row["status"], row["error_code"]) == ("cancelled", "execution_tree_closed")
    assert await driver.delivery(waiting) == "not_delivered"
