"""Renewals: by the database's clock, after the lock (L-11)."""

import asyncio

import pytest

from harness.postgres import DatabaseClock, Sessions
from services.driver import Driver, Turn, wanted
from turnkeeper.services.answers import Refused, RefusedWhy
from turnkeeper.services.auth import Worker
from turnkeeper.services.cancel import cancel
from turnkeeper.services.renew import heartbeat
from turnkeeper.wire.worker import Heartbeat, HeartbeatAnswer


async def renew(driver: Driver, turn: Turn, generation: int | None = None) -> HeartbeatAnswer | Refused:
    request = Heartbeat(lease_generation=turn.lease if generation is None else generation)
    return await heartbeat(driver.s, turn.worker, request)


async def test_ten_renewals_never_lower_the_end(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: L-11. Case: F02."""
    turn = await driver.up_to("claimed")
    end = (await driver.attempt(turn))["lease_expires_at"]
    for number in range(10):
        database_clock.offset((number * 7) % 30)
        answer = wanted(await renew(driver, turn), HeartbeatAnswer)
        assert answer.lease_expires_at >= end
        end = (await driver.attempt(turn))["lease_expires_at"]
        assert end == answer.lease_expires_at


async def test_an_expiry_is_never_null(driver: Driver) -> None:
    """Case: F02."""
    turn = await driver.up_to("claimed")
    for column in ("lease_expires_at", "execution_deadline", "renewable_until"):
        with pytest.raises(Exception, match="null value"):
            await driver.rows(f"UPDATE attempts SET {column} = NULL")  # type: ignore[arg-type]  # noqa: S608
    assert isinstance(await renew(driver, turn), HeartbeatAnswer)


async def test_an_expired_lease_is_never_revived(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: L-11, L-05."""
    turn = await driver.up_to("claimed")
    database_clock.offset(119)
    assert isinstance(await renew(driver, turn), HeartbeatAnswer)
    database_clock.offset(119 + 121)
    assert wanted(await renew(driver, turn), Refused).why is RefusedWhy.LEASE
    database_clock.real()


async def test_another_generation_attempt_or_state_is_refused(driver: Driver) -> None:
    """Proves: L-11. The stale twins of a renewal."""
    turn = await driver.up_to("claimed")
    other = await driver.up_to("claimed")
    assert isinstance(await renew(driver, turn, turn.lease + 1), Refused)
    assert isinstance(await renew(driver, turn, 0), Refused)
    mixed = Turn(turn.claim, Worker(other.claim.attempt, turn.claim.job, "host-1"))
    assert isinstance(await renew(driver, mixed), Refused)
    await driver.finish(turn, "failed")
    assert isinstance(await renew(driver, turn), Refused)
    assert isinstance(await renew(driver, other), HeartbeatAnswer)


async def test_a_hung_child_cannot_renew_for_ever(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: L-11: refused after claim + execution timeout + drain."""
    turn = await driver.up_to("claimed")
    for moment in range(100, 3660, 110):
        database_clock.offset(moment)
        assert isinstance(await renew(driver, turn), HeartbeatAnswer), moment
    database_clock.offset(3661)
    assert isinstance(await renew(driver, turn), Refused)


async def test_after_a_cancel_renewal_ends_with_grace_and_drain(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: L-10, L-11: told of the cancel at once, refused 70 s after it; a second cancel does not move that."""
    turn = await driver.up_to("claimed")
    assert not wanted(await renew(driver, turn), HeartbeatAnswer).cancel_requested
    await cancel(driver.s, driver.owner, turn.claim.job)
    assert wanted(await renew(driver, turn), HeartbeatAnswer).cancel_requested
    database_clock.offset(60)
    await cancel(driver.s, driver.owner, turn.claim.job)
    assert isinstance(await renew(driver, turn), HeartbeatAnswer)
    database_clock.offset(71)
    assert isinstance(await renew(driver, turn), Refused)


async def test_a_renewal_that_had_to_wait_is_judged_after_the_wait(
    driver: Driver, sessions: Sessions, database_clock: DatabaseClock
) -> None:
    """Proves: L-11: lock, then look. The lease ends while the renewal waits for the row."""
    turn = await driver.up_to("claimed")
    holder = await sessions.open()
    await holder.execute("SELECT 1 FROM attempts WHERE id = %s FOR NO KEY UPDATE", (turn.claim.attempt,))
    waiting = asyncio.create_task(renew(driver, turn))
    await sessions.wait_until_blocked_by(holder)
    database_clock.offset(121)
    await holder.rollback()
    assert isinstance(await waiting, Refused)


async def test_a_renewal_locks_the_attempt_alone(driver: Driver, sessions: Sessions) -> None:
    """Proves: L-11: whoever holds the run's row does not hold up a renewal."""
    turn = await driver.up_to("claimed")
    holder = await sessions.open()
    await holder.execute("SELECT 1 FROM runs WHERE id = %s FOR NO KEY UPDATE", (turn.claim.job,))
    assert isinstance(await renew(driver, turn), HeartbeatAnswer)
    await holder.rollback()
