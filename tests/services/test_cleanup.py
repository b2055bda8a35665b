"""Runtime cleanup behind the fence, in its simple form (C-01 to C-08 belong to it in full later)."""

import asyncio
from dataclasses import replace

from harness.postgres import Sessions
from services.driver import Driver
from turnkeeper.kit.stop import StopSignal
from turnkeeper.services import cleanup, conversations
from turnkeeper.services.context import Deleted, NotDeleted


class Slow:
    """A provisioner whose delete takes until it is told to go on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def delete(self, sandbox_id: str, *, lease_generation: int) -> Deleted | NotDeleted:  # noqa: ARG002
        self.asked.set()
        await self.go_on.wait()
        return Deleted()


async def closed_thread(driver: Driver) -> str:
    thread = (await driver.conversation()).thread_id
    await driver.whole_turn(thread)
    await conversations.close(driver.s, driver.owner, thread)
    return thread


async def test_nothing_is_held_while_the_delete_waits(driver: Driver, sessions: Sessions) -> None:
    """Proves: protocol 1: no transaction and no lock is held across a call to the outside."""
    thread = await closed_thread(driver)
    slow = Slow()
    s = replace(driver.s, sandboxes=slow)
    task = asyncio.create_task(cleanup.clean_scope(s, thread, driver.owner.uid))
    await slow.asked.wait()
    other = await sessions.open()
    await other.execute("SELECT 1 FROM runs WHERE runtime_cleanup_pending FOR NO KEY UPDATE NOWAIT")
    await other.execute("SELECT pg_advisory_xact_lock(hashtextextended('scope:' || %s, 0))", (thread,))
    await other.rollback()
    assert (
        await driver.value(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
        )
        == 0
    )
    slow.go_on.set()
    assert await task


async def test_cleaners_at_once_both_succeed(driver: Driver) -> None:
    """Proves: C-04 at this level: the first clears the fence, the others see it cleared."""
    thread = await closed_thread(driver)
    results = await asyncio.gather(*(cleanup.clean_scope(driver.s, thread, driver.owner.uid) for _ in range(4)))
    assert results == [True] * 4
    assert await driver.value("SELECT count(*) FROM workdir_holds WHERE ended_at IS NULL") == 0


async def test_a_scope_that_was_claimed_since_keeps_its_fence(driver: Driver) -> None:
    """Proves: C-07 at this level: the delete that comes back is of an older generation."""
    thread = await closed_thread(driver)
    slow = Slow()
    task = asyncio.create_task(cleanup.clean_scope(replace(driver.s, sandboxes=slow), thread, driver.owner.uid))
    await slow.asked.wait()
    await driver.rows(
        "INSERT INTO attempts (id, run_id, attempt_no, lease_generation, lease_owner, claim_id, host, incarnation, "
        "root_run_id, token_hash, lease_ttl_s, lease_expires_at, execution_deadline, renewable_until, ended_at, outcome) "
        "SELECT gen_random_uuid(), run_id, 2, nextval('lease_generations'), lease_owner, gen_random_uuid(), host, "
        "incarnation, root_run_id, sha256('x'), lease_ttl_s, lease_expires_at, execution_deadline, renewable_until, "
        "tk_now(), 'failed' FROM attempts"
    )
    slow.go_on.set()
    assert not await task
    assert await driver.value("SELECT count(*) FROM workdir_holds WHERE ended_at IS NULL") == 1
    assert await cleanup.clean_scope(driver.s, thread, driver.owner.uid)


async def test_the_loop_cleans_and_one_slow_scope_holds_up_no_other(driver: Driver) -> None:
    """Proves: C-03 at this level."""
    first = await closed_thread(driver)
    slow = Slow()

    class OneIsSlow:
        async def delete(self, sandbox_id: str, *, lease_generation: int) -> Deleted | NotDeleted:
            if sandbox_id == slow_id:
                return await slow.delete(sandbox_id, lease_generation=lease_generation)
            return Deleted()

    slow_id = await driver.value("SELECT sandbox_id FROM shared_workspaces WHERE runtime_scope_id = %s", first)
    stop = StopSignal()
    s = replace(driver.s, sandboxes=OneIsSlow())
    task = asyncio.create_task(cleanup.run(s, stop))
    async with asyncio.timeout(30):
        await slow.asked.wait()
        second = await closed_thread(driver)
        while await driver.value("SELECT ended_at IS NULL FROM workdir_holds WHERE runtime_scope_id = %s", second):
            assert not task.done()
        stop.set("test")
        await task
    assert await driver.value("SELECT ended_at IS NULL FROM workdir_holds WHERE runtime_scope_id = %s", first)


async def test_without_a_provisioner_the_fence_stays(driver: Driver) -> None:
    thread = await closed_thread(driver)
    assert not await cleanup.clean_scope(replace(driver.s, sandboxes=None), thread, driver.owner.uid)
    assert await driver.value("SELECT count(*) FROM runs WHERE runtime_cleanup_pending") == 1
