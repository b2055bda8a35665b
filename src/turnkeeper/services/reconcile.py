"""The reconciler: repairs what a lost signal or a dead process left behind, so that nothing stays stuck.

Every step reads candidates without locks and then works in short transactions of its own that look again under the locks.
"""

from collections.abc import Awaitable, Callable

from turnkeeper.domain.errors import ErrorCode, InvariantViolation
from turnkeeper.domain.run import RunEvent, RunStatus
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.stop import StopSignal
from turnkeeper.services.context import Services
from turnkeeper.services.dispatch import dispatch_scope, lock_line, recompute
from turnkeeper.services.ending import begin_closing, end_run
from turnkeeper.services.idempotency import KEPT_S
from turnkeeper.services.loop import run_loop
from turnkeeper.services.verdict import give_verdicts
from turnkeeper.services.wakes import VERDICTS
from turnkeeper.store import cleanup, dispatch, holds, hosts, idempotency, runs, web_sessions
from turnkeeper.store.cleanup import PendingCleanup
from turnkeeper.store.locks import lock_run
from turnkeeper.store.runs import RunRow
from turnkeeper.store.tx import Tx

INTERVAL_S = 5.0
_BATCH = 200
_log = get_logger("services.reconcile")


async def run(s: Services, stop: StopSignal) -> None:
    """Reconcile until told to stop."""

    async def wait_s() -> float:
        return INTERVAL_S

    await run_loop(s, stop, "reconcile", lambda: reconcile(s), wait_s=wait_s, topics=(VERDICTS.topic,))


async def reconcile(s: Services) -> None:
    """One round."""
    await give_verdicts(s)
    await mark_silent_hosts(s)
    await fail_unclaimed(s)
    await dispatch_stuck(s)
    await end_holds_without_sandbox(s)
    await forget(s)


async def mark_silent_hosts(s: Services) -> int:
    """Hosts that were not heard for too long are gone; that by itself ends no attempt."""

    async def work(tx: Tx) -> int:
        return await hosts.mark_silent(tx, silent_s=s.timing.host_silent_s)

    return await s.db.run("reconcile.hosts", work)


async def fail_unclaimed(s: Services) -> int:
    """Ready runs that no live host could claim for the bound fail `sandbox_unavailable`."""
    bound_s = s.timing.unclaimed_bound_s
    found = await s.db.read("reconcile.unclaimed", lambda r: runs.unclaimed(r, bound_s=bound_s, limit=_BATCH))
    failed = 0
    for one in found:
        failed += await _each("unclaimed", one.id, lambda one=one: _fail_unclaimed(s, one))
    return failed


async def _fail_unclaimed(s: Services, seen: RunRow) -> bool:
    async def work(tx: Tx) -> bool:
        closing = await begin_closing(tx, s, seen.runtime_scope_id, seen.uid)
        current = await lock_run(tx, seen.id, RunRow)
        if current is None or current.status != RunStatus.PENDING:
            return False
        if not await runs.is_unclaimed(tx, seen.id, bound_s=s.timing.unclaimed_bound_s):
            return False
        detail = {"stage": "dispatch", "delivered": "no", "why": "no_live_host"}
        await end_run(
            tx, s, closing, current, RunEvent.WAITING_FAILED, code=ErrorCode.SANDBOX_UNAVAILABLE, detail=detail
        )
        await recompute(tx, s, seen.runtime_scope_id, closing.owner, others_are_asked=closing.gives_out)
        await closing.outbox.flush(tx)
        return True

    return await s.db.run("reconcile.fail", work)


async def dispatch_stuck(s: Services) -> int:
    """Repair missed wake-ups: recompute every scope that waits while nothing of it is ready or live."""
    after: str | None = None
    seen = 0
    while True:
        page = await s.db.read("reconcile.stuck", lambda r, a=after: dispatch.stuck_scopes(r, after=a, limit=_BATCH))
        for scope, uid in page:
            await _each("dispatch", scope, lambda scope=scope, uid=uid: _dispatch(s, scope, uid))
        seen += len(page)
        if len(page) < _BATCH:
            return seen
        after = page[-1][0]


async def _dispatch(s: Services, scope: str, uid: str) -> bool:
    await dispatch_scope(s, scope, uid)
    return True


async def end_holds_without_sandbox(s: Services) -> int:
    """Holds of closed scopes that never had a run, so no sandbox and no fence."""
    found: list[PendingCleanup] = await s.db.read("reconcile.holds", lambda r: cleanup.unended_closed_scopes(r, _BATCH))
    for one in found:
        await _each("hold", one.runtime_scope_id, lambda one=one: _end_hold(s, one))
    return len(found)


async def _end_hold(s: Services, one: PendingCleanup) -> bool:
    async def work(tx: Tx) -> bool:
        await lock_line(tx, one.runtime_scope_id, one.uid)
        facts = await cleanup.facts(tx, one.runtime_scope_id)
        if facts is None or facts.fence_up or facts.active or facts.sandbox_id is not None:
            return False
        return await holds.end_hold(tx, one.runtime_scope_id, "closed without a sandbox") > 0

    return await s.db.run("reconcile.hold", work)


async def forget(s: Services) -> None:
    """Old idempotency keys and ended browser sessions."""

    async def work(tx: Tx) -> None:
        await idempotency.delete_old(tx, age_s=KEPT_S, limit=1000)
        await web_sessions.delete_expired(tx, 1000)

    await s.db.run("reconcile.forget", work)


async def _each(what: str, key: str, work: Callable[[], Awaitable[bool]]) -> bool:
    """One item. A broken invariant in it is told with its traceback and left as it is: the others must not wait for it."""
    try:
        return await work()
    except InvariantViolation:
        _log.exception("reconcile_failed", what=what, key=key)
        return False
