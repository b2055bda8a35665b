"""`POST jobs/<job>/release`: a host gives back a claim that its child provably never took (H-02, H-05).

The admission condition is part of the closing statement. `prepare` records acceptance under the same row locks, so that
of the two the one that commits first wins.
"""

from turnkeeper.domain.attempt import AttemptOutcome
from turnkeeper.domain.errors import ErrorCode, InvariantViolation
from turnkeeper.domain.machine import Refused as MachineRefused
from turnkeeper.domain.run import DeliveryStatus, RunEvent, RunStatus, transition
from turnkeeper.services.answers import Refused, RefusedWhy
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.dispatch import dispatch_others_after, recompute
from turnkeeper.services.ending import Closing, begin_closing, end_run
from turnkeeper.services.finish import scrub
from turnkeeper.services.leased import LEASE_REFUSED, must
from turnkeeper.services.tree import lock_tree
from turnkeeper.store import attempts, messages, runs
from turnkeeper.store.guards import Lease, is_held
from turnkeeper.store.runs import RunRow
from turnkeeper.store.tx import Tx
from turnkeeper.wire.worker import FinishAnswer, Release


async def release(s: Services, worker: Worker, request: Release) -> FinishAnswer | Refused:
    """The run's status after it: waiting again, cancelled, or failed after too many releases."""
    lease = Lease(worker.attempt_id, worker.run_id, request.lease_generation)

    async def work(tx: Tx) -> FinishAnswer | Refused:
        seen = await runs.get_run(tx, worker.run_id)
        if seen is None:
            return LEASE_REFUSED
        closing = await begin_closing(tx, s, seen.runtime_scope_id, seen.uid)
        tree = await lock_tree(tx, seen)
        if not any(attempt.id == worker.attempt_id for attempt in tree.attempts):
            return await _answer_again(tx, tree.target, lease)
        why = f"{request.why}: {scrub(request.detail)}" if request.detail else request.why
        if not await attempts.release(tx, lease, thread_id=seen.thread_id, why=why):
            if not await is_held(tx, lease):
                return LEASE_REFUSED
            return Refused(RefusedWhy.ACCEPTED, "the child has taken the turn")
        status = await _after(tx, s, closing, tree.target, why)
        await recompute(tx, s, seen.runtime_scope_id, closing.owner, others_are_asked=True)
        if not closing.gives_out:  # a waiting run again, whose tree's room is free: it may be another scope's now
            dispatch_others_after(tx, s, seen.uid)
        await closing.outbox.flush(tx)
        return FinishAnswer(status=status.value)

    return await s.db.run("release", work)


async def _after(tx: Tx, s: Services, closing: Closing, run: RunRow, why: str) -> RunStatus:
    exhausted = run.releases + 1 >= s.limits.releases_max
    event = RunEvent.RELEASES_EXHAUSTED if exhausted else RunEvent.RELEASED
    status = transition(RunStatus(run.status), event, cancel_requested=run.cancel_requested_at is not None)
    if isinstance(status, MachineRefused):
        raise InvariantViolation(f"run {run.id}: {status.reason}")
    if status is RunStatus.PENDING:
        must(await runs.mark_released(tx, run.id), "released run")
        await messages.set_delivery(tx, run.id, DeliveryStatus.QUEUED)
        closing.outbox.run(run.thread_id, run.id, status.value, released=run.releases + 1)
        return status
    must(await runs.count_release(tx, run.id), "released run")
    detail = {"stage": "launch", "delivered": "no", "why": why}
    return await end_run(tx, s, closing, run, event, code=ErrorCode.AGENT_START_FAILED, detail=detail)


async def _answer_again(tx: Tx, run: RunRow, lease: Lease) -> FinishAnswer | Refused:
    """A release whose reply was lost is asked for again."""
    closed = await attempts.get_attempt(tx, lease.attempt_id)
    if closed is None or closed.lease_generation != lease.generation or closed.outcome != AttemptOutcome.RELEASED:
        return LEASE_REFUSED
    return FinishAnswer(status=run.status)
