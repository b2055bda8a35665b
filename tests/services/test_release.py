"""Releases: only what the child provably never took goes back to the queue (H-02, H-05)."""

import asyncio

from harness.postgres import DatabaseClock, Sessions
from services.driver import Driver, Turn, wanted
from turnkeeper.services.answers import Refused, RefusedWhy
from turnkeeper.services.cancel import cancel
from turnkeeper.services.prepare import prepare
from turnkeeper.services.release import release
from turnkeeper.wire.worker import ExecutionSpec, FinishAnswer, Prepare, Release


async def released(
    driver: Driver, turn: Turn, generation: int | None = None, detail: str = ""
) -> FinishAnswer | Refused:
    request = Release(
        lease_generation=turn.lease if generation is None else generation, why="not_created", detail=detail
    )
    return await release(driver.s, turn.worker, request)


async def test_a_released_run_waits_again(driver: Driver) -> None:
    """Proves: H-05, A-01."""
    turn = await driver.up_to("claimed")
    assert await released(driver, turn) == FinishAnswer(status="pending")
    run = await driver.run(turn.claim.job)
    assert (run["status"], run["releases"]) == ("pending", 1)
    assert await driver.ready(turn.claim.job)
    assert await driver.delivery(turn.claim.job) == "queued"
    assert (await driver.attempt(turn))["outcome"] == "released"
    again = await driver.claim()
    assert again.claim.attempt_no == 2
    assert again.claim.lease_generation > turn.lease


async def test_a_release_whose_reply_was_lost(driver: Driver) -> None:
    turn = await driver.up_to("claimed")
    await released(driver, turn)
    again = await driver.claim()
    assert await released(driver, turn) == FinishAnswer(status="running")
    assert (await driver.attempt(again))["ended_at"] is None


async def test_after_three_releases_the_run_fails(driver: Driver) -> None:
    """Proves: H-05."""
    thread = (await driver.conversation()).thread_id
    run = (await driver.submit(thread)).run.id
    for expected in ("pending", "pending", "failed"):
        assert await released(
            driver, await driver.claim(), detail="no http://x/y tkw_secretsecretsecret"
        ) == FinishAnswer(status=expected)
    row = await driver.run(run)
    assert (row["status"], row["error_code"], row["releases"]) == ("failed", "agent_start_failed", 3)
    assert "http" not in str(row["error_detail"])
    assert "secretsecret" not in str(row["error_detail"])
    assert await driver.delivery(run) == "not_delivered"
    assert (await driver.events_of(thread))[-1]["kind"] == "end"


async def test_a_cancelled_run_is_not_queued_again(driver: Driver) -> None:
    """Proves: H-05."""
    turn = await driver.up_to("claimed")
    await cancel(driver.s, driver.owner, turn.claim.job)
    assert await released(driver, turn) == FinishAnswer(status="cancelled")
    assert (await driver.run(turn.claim.job))["error_code"] == "cancelled"


async def test_what_was_accepted_is_not_released(driver: Driver) -> None:
    """Proves: H-04, H-05."""
    for stage in ("prepared", "activated", "admitted", "settled"):
        turn = await driver.up_to(stage)
        assert wanted(await released(driver, turn), Refused).why is RefusedWhy.ACCEPTED
        assert (await driver.run(turn.claim.job))["status"] == "running"
        await driver.finish(turn, "failed")


async def test_stale_releases_change_nothing(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: H-05, L-11."""
    turn = await driver.up_to("claimed")
    assert wanted(await released(driver, turn, turn.lease + 1), Refused).why is RefusedWhy.LEASE
    database_clock.offset(121)
    assert wanted(await released(driver, turn), Refused).why is RefusedWhy.LEASE
    assert (await driver.attempt(turn))["ended_at"] is None


async def test_release_against_prepare(driver: Driver) -> None:
    """Proves: H-05: whichever commits first wins; never both, never neither."""
    for _ in range(6):
        turn = await driver.up_to("claimed")
        request = Prepare(lease_generation=turn.lease, worker="host-1/1/1")
        one, two = await asyncio.gather(released(driver, turn), prepare(driver.s, turn.worker, request))
        assert isinstance(one, FinishAnswer) != isinstance(two, ExecutionSpec)
        await cancel(driver.s, driver.owner, turn.claim.job)
        if isinstance(two, ExecutionSpec):
            await driver.finish(turn, "cancelled")


async def test_a_release_that_waits_for_prepare_loses(driver: Driver, sessions: Sessions) -> None:
    """Proves: H-05: acceptance is committed while the release waits for the attempt's row."""
    turn = await driver.up_to("claimed")
    holder = await sessions.open()
    await holder.execute("UPDATE attempts SET accepted_at = tk_now() WHERE id = %s", (turn.claim.attempt,))
    waiting = asyncio.create_task(released(driver, turn))
    await sessions.wait_until_blocked_by(holder)
    await holder.commit()
    assert wanted(await waiting, Refused).why is RefusedWhy.ACCEPTED
    assert (await driver.run(turn.claim.job))["status"] == "running"
