"""docs/lock-order.md against what the transactions really lock."""

import re
from collections import defaultdict
from pathlib import Path

from harness.postgres import DatabaseClock
from services.driver import HOST, Driver
from services.trees import add_child
from turnkeeper.kit.ids import new_id
from turnkeeper.services import cleanup, conversations, hosts, readiness, reap, reconcile
from turnkeeper.services.abandon import abandon
from turnkeeper.services.cancel import cancel
from turnkeeper.services.release import release
from turnkeeper.services.renew import heartbeat
from turnkeeper.store.locks import LockTaken, Rank
from turnkeeper.wire.worker import Abandon, Heartbeat, Release

DOCUMENT = Path(__file__).parents[2] / "docs" / "lock-order.md"
ROW = re.compile(r"^\| `(?P<name>[a-z.]+)` \| (?P<locks>[a-z_, ]+) \|", re.MULTILINE)


def documented() -> dict[str, list[Rank]]:
    return {
        row["name"]: [Rank[lock.strip().upper()] for lock in row["locks"].split(",")]
        for row in ROW.finditer(DOCUMENT.read_text())
    }


class Recorder:
    """Which ranks each transaction took, by its name; and that they never fall."""

    def __init__(self) -> None:
        self.taken: dict[str, set[Rank]] = defaultdict(set)

    async def __call__(self, lock: LockTaken) -> None:
        self.taken[lock.transaction].add(lock.rank)


async def everything(driver: Driver, clock: DatabaseClock) -> None:
    """Every use case that locks, at least once in each of its forms."""
    s, owner = driver.s, driver.owner
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    turn = await driver.up_to("settled", thread)
    child = await add_child(driver, turn.claim.job)
    await driver.send_events(turn, 1, "x")
    await heartbeat(s, turn.worker, Heartbeat(lease_generation=turn.lease))
    await cancel(s, owner, turn.claim.job)
    assert (await driver.run(child))["status"] == "cancelled"
    await driver.finish(turn)

    claim_id = new_id()
    await driver.submit(thread)
    turn = await driver.claim(claim_id=claim_id)
    await driver.claim(claim_id=claim_id)
    await release(s, turn.worker, Release(lease_generation=turn.lease, why="not_accepted"))
    turn = await driver.claim()
    for step in (driver.prepare, driver.record, driver.activate):
        await step(turn)
    await driver.activate(turn)
    request = Abandon(lease_generation=turn.lease, activation=turn.act.activation, fence=turn.act.fence)
    assert await abandon(s, turn.worker, request) is None
    await driver.finish(turn, "failed")

    for end in ("reap", "gone"):
        lost = (await driver.conversation()).thread_id
        turn = await driver.up_to("admitted", lost)
        await driver.submit(lost)
        if end == "reap":
            clock.offset(60)
            await heartbeat(s, turn.worker, Heartbeat(lease_generation=turn.lease))
            clock.offset(123)
            assert await reap.look_later(s)
            clock.offset(60 + 123)
            await driver.heartbeat()
            assert await reap.reap(s) == 1
        else:
            await reap.end_gone(s, HOST, turn.claim.job, turn.claim.attempt, turn.lease)
        assert await cleanup.clean_scope(s, lost, owner.uid)

    running = await driver.up_to("prepared")
    await driver.submit(running.claim.thread_id)
    await conversations.close(s, owner, running.claim.thread_id)
    await driver.finish(running, "cancelled")
    assert await cleanup.clean_scope(s, running.claim.thread_id, owner.uid)

    empty = (await driver.conversation()).thread_id
    await driver.rows("UPDATE conversations SET state = 'closed' WHERE thread_id = %s", empty)
    assert await reconcile.end_holds_without_sandbox(s) == 1
    fresh = await driver.submit((await driver.conversation()).thread_id)
    await readiness.readiness(s)
    assert await driver.ready(fresh.run.id)
    await driver.rows("UPDATE runs SET ready_at = NULL WHERE status = 'pending'")
    await reconcile.dispatch_stuck(s)
    clock.offset(123 + 700)
    await reconcile.mark_silent_hosts(s)
    assert await reconcile.fail_unclaimed(s) == 1
    assert await hosts.list_servers(s)


async def test_every_transaction_locks_what_is_documented(driver: Driver, database_clock: DatabaseClock) -> None:
    """Proves: protocol 1: the order of locks, for every use case of this release."""
    table = documented()
    for name, ranks in table.items():
        assert ranks == sorted(ranks), f"{name} is listed out of order"
    recorder = Recorder()
    with driver.s.db.observe_locks(recorder):
        await everything(driver, database_clock)
    taken = {name: sorted(ranks) for name, ranks in recorder.taken.items()}
    assert taken == table
