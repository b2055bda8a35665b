"""Runtime cleanup behind the fence, in three stages (C-02, protocol 3).

1. A short transaction looks: the fence is up, nothing of the scope is active; it reads the newest lease generation.
2. Outside any transaction and in bounded time: the delete, which fences every older generation at the provisioner.
3. A short transaction looks again: nothing of the scope was claimed since, the Workdir is the same. Only then the fence is
   cleared, the terminal event appended, and with a closed or lost conversation the Workdir hold ended.

A failed or unknown delete keeps the fence and is tried again. Of several cleaners the first to succeed clears it.
"""

import asyncio
import contextlib

from turnkeeper.domain.run import TERMINAL, RunStatus
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.stop import StopSignal
from turnkeeper.services.context import Deleted, NotDeleted, Services
from turnkeeper.services.dispatch import dispatch_others_after, recompute
from turnkeeper.services.ending import Closing, begin_closing
from turnkeeper.services.loop import run_loop
from turnkeeper.services.publish import end_event
from turnkeeper.services.wakes import CLEANUP
from turnkeeper.store import cleanup as statements
from turnkeeper.store import events, holds, messages, runs
from turnkeeper.store.cleanup import CleanupFacts, PendingCleanup
from turnkeeper.store.locks import lock_run, lock_scope
from turnkeeper.store.tx import Tx

RETRY_S = 5.0
AT_ONCE_MAX = 16
_log = get_logger("services.cleanup")


async def run(s: Services, stop: StopSignal) -> None:
    """Clean up until told to stop. A delete that hangs in one scope holds up no other (C-03)."""
    under_way: dict[str, asyncio.Task[None]] = {}

    async def work() -> None:
        await _start(s, under_way)

    async def wait_s() -> float:
        return RETRY_S

    try:
        await run_loop(s, stop, "cleanup", work, wait_s=wait_s, topics=(CLEANUP.topic,))
    finally:
        for task in list(under_way.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _start(s: Services, under_way: dict[str, asyncio.Task[None]]) -> None:
    for one in await s.db.read("cleanup.pending", lambda r: statements.pending(r, AT_ONCE_MAX * 4)):
        if len(under_way) >= AT_ONCE_MAX:
            return
        scope = one.runtime_scope_id
        if scope in under_way:
            continue
        task = asyncio.create_task(_attempt(s, one), name=f"cleanup {scope}")
        under_way[scope] = task
        task.add_done_callback(lambda _task, scope=scope: under_way.pop(scope, None) and None)


async def _attempt(s: Services, one: PendingCleanup) -> None:
    try:
        await clean_scope(s, one.runtime_scope_id, one.uid)
    except Exception as error:  # the next round tries again; one scope's fault is not another's
        _log.exception("cleanup_failed", scope=one.runtime_scope_id, error=type(error).__name__)


async def clean_scope(s: Services, scope: str, uid: str) -> bool:
    """Whether the fence of this scope is down afterwards."""
    before = await s.db.run("cleanup.look", lambda tx: _look(tx, scope))
    if before is None:
        return True
    if before.active:
        return False
    result = await _delete(s, before)
    if isinstance(result, NotDeleted):
        _log.warning("cleanup_not_confirmed", scope=scope, why=result.why)
        return False
    return await s.db.run("cleanup.clear", lambda tx: _clear(tx, s, scope, uid, before))


async def _look(tx: Tx, scope: str) -> CleanupFacts | None:
    """Stage 1. None: the fence is down."""
    await lock_scope(tx, scope)
    flagged = await statements.flagged_run(tx, scope)
    if flagged is None:
        return None
    await lock_run(tx, flagged)
    facts = await statements.facts(tx, scope)
    return facts if facts is not None and facts.fence_up else None


async def _delete(s: Services, before: CleanupFacts) -> Deleted | NotDeleted:
    """Stage 2. A scope that never had a sandbox counts as confirmed."""
    if before.sandbox_id is None:
        return Deleted()
    if s.sandboxes is None:
        return NotDeleted("no provisioner is configured")
    try:
        async with asyncio.timeout(s.sandbox_timing.cleanup_timeout_s):
            return await s.sandboxes.delete(before.sandbox_id, lease_generation=before.lease_generation)
    except TimeoutError:
        return NotDeleted(f"no answer within {s.sandbox_timing.cleanup_timeout_s} s")


async def _clear(tx: Tx, s: Services, scope: str, uid: str, before: CleanupFacts) -> bool:
    """Stage 3."""
    closing = await begin_closing(tx, s, scope, uid)
    flagged = await statements.flagged_run(tx, scope)
    if flagged is None:
        return True  # another cleaner was first
    await lock_run(tx, flagged)
    now = await statements.facts(tx, scope)
    if now is None or now.active or now.lease_generation != before.lease_generation or now.workdir != before.workdir:
        _log.warning("cleanup_overtaken", scope=scope, active=now is not None and now.active)
        return False
    for run_id in await statements.clear_fence(tx, scope):
        await _append_end(tx, closing, run_id)
    await holds.end_hold(tx, scope, "sandbox deleted")
    await recompute(tx, s, scope, closing.owner, others_are_asked=True)
    await closing.outbox.flush(tx)
    dispatch_others_after(tx, s, uid)
    return True


async def _append_end(tx: Tx, closing: Closing, run_id: str) -> None:
    """The terminal event that waited for the fence (C-01)."""
    run = await runs.get_run(tx, run_id)
    if run is None or RunStatus(run.status) not in TERMINAL or await events.end_of_run(tx, run_id) is not None:
        return
    output = await messages.message_of_run(tx, run_id, "assistant")
    closing.outbox.add(
        run.thread_id,
        end_event(
            run_id,
            status=run.status,
            error_code=run.error_code,
            language=closing.owner.tongue,
            final_message_id=None if output is None else output.id,
        ),
    )
