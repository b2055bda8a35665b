"""Renewals that arrive together: made together, each judged for itself, none held up by another's row (protocol 1)."""

import asyncio

import pytest

from harness.postgres import DatabaseClock, Sessions
from services.driver import Driver, Turn
from turnkeeper.services.renewals import BATCHES_MAX
from turnkeeper.store.attempts import Renewal
from turnkeeper.store.errors import DatabaseUnavailable
from turnkeeper.store.guards import Lease
from turnkeeper.store.locks import LockTaken, Rank


def lease_of(turn: Turn, generation: int | None = None) -> Lease:
    return Lease(turn.claim.attempt, turn.claim.job, turn.lease if generation is None else generation)


async def writers(driver: Driver, turns: list[Turn]) -> list[str]:
    """The transaction that wrote each attempt's row last."""
    rows = await driver.s.db.read(
        "test.writers", lambda r: r.fetch_all("SELECT id, xmin::text AS writer FROM attempts")
    )
    by_id = {row["id"]: row["writer"] for row in rows}
    return [by_id[turn.claim.attempt] for turn in turns]


class Gate:
    """Holds the first transaction that has locked an attempt, until it is opened."""

    def __init__(self, hold: int = 1) -> None:
        self.reached, self.opened = asyncio.Semaphore(0), asyncio.Event()
        self._hold = hold

    async def __call__(self, lock: LockTaken) -> None:
        if lock.rank is Rank.ATTEMPT and self._hold:
            self._hold -= 1
            self.reached.release()
            await self.opened.wait()


async def test_what_arrives_during_a_transaction_is_made_by_the_next_one(driver: Driver) -> None:
    """Proves: L-11. One transaction for the first, one for all that came meanwhile."""
    turns = [await driver.up_to("claimed") for _ in range(4)]
    gate = Gate()
    with driver.s.db.observe_locks(gate):
        first = asyncio.create_task(driver.s.renewals.renew(lease_of(turns[0])))
        await gate.reached.acquire()
        later = [asyncio.create_task(driver.s.renewals.renew(lease_of(turn))) for turn in turns[1:]]
        await asyncio.sleep(0)
        gate.opened.set()
        answers = await asyncio.gather(first, *later)
    assert all(isinstance(answer, Renewal) for answer in answers)
    alone, *together = await writers(driver, turns)
    assert len(set(together)) == 1
    assert alone not in together


async def test_each_of_a_batch_is_judged_for_itself(driver: Driver) -> None:
    """Proves: L-11: another generation, another run and an attempt that there is not are refused beside one that is
    granted, also where they name the same attempt."""
    turn, other = await driver.up_to("claimed"), await driver.up_to("claimed")
    asked = [
        lease_of(turn),
        lease_of(turn, turn.lease + 1),
        lease_of(turn, 0),
        Lease(turn.claim.attempt, other.claim.job, turn.lease),
        Lease(turn.claim.job, turn.claim.job, turn.lease),
        lease_of(other),
    ]
    answers = await asyncio.gather(*(driver.s.renewals.renew(lease) for lease in asked))
    assert [answer is not None for answer in answers] == [True, False, False, False, False, True]


async def test_an_expired_lease_is_refused_beside_one_that_is_not(
    driver: Driver, database_clock: DatabaseClock
) -> None:
    """Proves: L-11, L-05. The expired one stays expired."""
    old = await driver.up_to("claimed")
    database_clock.offset(121)
    await driver.heartbeat()
    new = await driver.up_to("claimed")
    answers = await asyncio.gather(*(driver.s.renewals.renew(lease_of(turn)) for turn in (old, new)))
    assert [answer is not None for answer in answers] == [False, True]
    assert (await driver.attempt(old))["last_heartbeat_at"] is None


async def test_a_locked_attempt_holds_up_no_other(
    driver: Driver, sessions: Sessions, database_clock: DatabaseClock
) -> None:
    """Proves: L-11. A batch skips the row; its renewal waits by itself, and is judged after the wait."""
    held, free = await driver.up_to("claimed"), await driver.up_to("claimed")
    holder = await sessions.open()
    await holder.execute("SELECT 1 FROM attempts WHERE id = %s FOR NO KEY UPDATE", (held.claim.attempt,))
    waiting = asyncio.create_task(driver.s.renewals.renew(lease_of(held)))
    assert await driver.s.renewals.renew(lease_of(free)) is not None
    await sessions.wait_until_blocked_by(holder)
    assert await driver.s.renewals.renew(lease_of(free)) is not None
    database_clock.offset(121)
    await holder.rollback()
    assert await waiting is None


async def test_a_transaction_that_takes_long_is_not_waited_for(driver: Driver) -> None:
    """Those that came while it was under way, and those that come later, are renewed while it still lasts; and at most
    so many take long at once."""
    turns = [await driver.up_to("claimed") for _ in range(BATCHES_MAX)]
    gate = Gate(hold=BATCHES_MAX - 1)
    with driver.s.db.observe_locks(gate):
        stuck: list[asyncio.Task[Renewal | None]] = []
        for turn in turns[1:]:
            stuck.append(asyncio.create_task(driver.s.renewals.renew(lease_of(turn))))
            await gate.reached.acquire()
        assert await driver.s.renewals.renew(lease_of(turns[0])) is not None
        assert await driver.s.renewals.renew(lease_of(turns[0])) is not None
        assert not any(task.done() for task in stuck)
        gate.opened.set()
        assert None not in await asyncio.gather(*stuck)
    assert await driver.s.renewals.renew(lease_of(turns[0])) is not None


async def test_whoever_leaves_takes_nobody_along(driver: Driver) -> None:
    """A request that ended while its batch was under way: the renewal stands, the others are answered."""
    turns = [await driver.up_to("claimed") for _ in range(2)]
    gate = Gate()
    with driver.s.db.observe_locks(gate):
        leaving, staying = (asyncio.create_task(driver.s.renewals.renew(lease_of(turn))) for turn in turns)
        await gate.reached.acquire()
        leaving.cancel()
        gate.opened.set()
        assert await staying is not None
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (await driver.attempt(turns[0]))["last_heartbeat_at"] is not None


async def test_without_a_database_everybody_hears_so(driver: Driver) -> None:
    """And nobody is told that a lease was refused."""
    turns = [await driver.up_to("claimed") for _ in range(2)]
    await driver.s.db.close()
    answers = await asyncio.gather(*(driver.s.renewals.renew(lease_of(turn)) for turn in turns), return_exceptions=True)
    assert [type(answer) for answer in answers] == [DatabaseUnavailable] * 2
