"""`POST jobs/<job>/finish`: the worker ends its run, in one transaction (protocol 4).

What ended is decided by the stored facts; the worker's word fills in what they leave open. A repeated request gets the
same answer: the attempt is closed, and it is this worker that closed it.
"""

import re
from typing import Any

from turnkeeper.domain.attempt import AttemptOutcome, outcome_of
from turnkeeper.domain.errors import ErrorCode
from turnkeeper.kit.log import REDACTED
from turnkeeper.kit.text import clean, clean_json, tail
from turnkeeper.services.answers import Refused
from turnkeeper.services.auth import Worker
from turnkeeper.services.conclude import LockedTurn, conclude, decide, lock_turn
from turnkeeper.services.context import Services
from turnkeeper.services.decide import Move, Word
from turnkeeper.services.leased import LEASE_REFUSED, held, run_leased
from turnkeeper.services.verdict import give_verdict
from turnkeeper.store import attempts, runs, snapshots
from turnkeeper.store.events import NewEvent
from turnkeeper.store.guards import Lease
from turnkeeper.store.tx import Tx
from turnkeeper.wire.turn import EventKind, SnapshotResult
from turnkeeper.wire.worker import FailureReport, Finish, FinishAnswer

_BY_WORKER = frozenset(
    {AttemptOutcome.COMPLETED, AttemptOutcome.FAILED, AttemptOutcome.CANCELLED, AttemptOutcome.INTERRUPTED}
)
_URL = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+")
_SECRET = re.compile(r"\btk[whps]?_[A-Za-z0-9_-]{8,}")


async def finish(s: Services, worker: Worker, request: Finish) -> FinishAnswer | Refused:
    """The run's terminal status, or `Refused`: the lease is not held, so somebody else decides (or has decided)."""
    failure = request.failure
    code = None if failure is None else known_code(failure.code)
    may_lose = code is ErrorCode.SESSION_UNAVAILABLE

    async def work(tx: Tx) -> FinishAnswer | Refused:
        seen = await runs.place_of(tx, worker.run_id)
        if seen is None:
            return LEASE_REFUSED
        turn = await lock_turn(tx, s, seen, worker.attempt_id, may_lose=may_lose)
        lease = Lease(worker.attempt_id, worker.run_id, request.lease_generation)
        if turn.attempt is None:
            return await _answer_again(tx, turn, lease)
        if turn.attempt.lease_generation != lease.generation:
            return LEASE_REFUSED
        facts, end = decide(turn, Word.WORKER, status=request.status, code=code)
        outcome = outcome_of(end.event) or AttemptOutcome.FAILED
        await held(tx, lease, await attempts.close_held(tx, lease, outcome), "finished attempt")
        if end.settled:
            await _store_snapshot(tx, turn, request.snapshot)
        detail = None if failure is None else detail_of(failure, s.limits.stderr_tail_bytes)
        status = await conclude(tx, s, turn, facts, end, detail)
        if end.move is Move.QUARANTINE and turn.membership is not None:
            thread, fence = turn.membership.thread_id, turn.membership.fence + 1
            scope, uid = turn.run.runtime_scope_id, turn.run.uid
            # A transaction of its own: the quarantine is durable first. Lost with the process: the reconciler's.
            tx.after_commit(lambda: _verdict(s, thread, fence, scope, uid))
        return FinishAnswer(status=status.value)

    return await run_leased(s, "finish", work)


async def _verdict(s: Services, thread_id: str, fence: int, scope: str, uid: str) -> None:
    await give_verdict(s, thread_id, fence, scope, uid)


async def _answer_again(tx: Tx, turn: LockedTurn, lease: Lease) -> FinishAnswer | Refused:
    closed = await attempts.get_attempt(tx, lease.attempt_id)
    if closed is None or closed.lease_generation != lease.generation or closed.outcome not in _BY_WORKER:
        return LEASE_REFUSED
    return FinishAnswer(status=turn.run.status)


async def _store_snapshot(tx: Tx, turn: LockedTurn, snapshot: SnapshotResult | None) -> None:
    """A snapshot never fails a turn (D-08): whatever came is stored, or why there is none."""
    activation, run = turn.activation, turn.run
    if activation is None or activation.epoch is None:
        return
    tree_id = snapshot.tree_id if snapshot is not None else None
    if tree_id is not None and not re.fullmatch(r"[0-9a-f]{40,64}", tree_id):
        tree_id = None
    why = None
    if tree_id is None:
        said = snapshot.unavailable_why if snapshot is not None else None
        why = clean(said or "no snapshot was reported")[:500]
    changes: Any = None
    if tree_id is not None and snapshot is not None and snapshot.changes is not None:
        changes = clean_json(snapshot.changes.model_dump(mode="json"))
    stored = await snapshots.insert_snapshot(
        tx,
        runtime_scope_id=run.runtime_scope_id,
        epoch=activation.epoch,
        run_id=run.id,
        tree_id=tree_id,
        unavailable_why=why,
        changes=changes,
    )
    if stored and changes is not None:
        turn.closing.outbox.add(run.thread_id, NewEvent(run.id, EventKind.CHANGES, changes))


def known_code(code: str) -> ErrorCode:
    """The code that a worker reported; one that this release does not know is the agent's protocol error."""
    return ErrorCode(code) if code in set(ErrorCode) else ErrorCode.AGENT_PROTOCOL_ERROR


def detail_of(failure: FailureReport, stderr_tail_bytes: int) -> dict[str, Any]:
    """What is kept about a failure: clean text, and no URL or secret of ours, whatever the worker sent (E-02)."""
    told = failure.model_dump(mode="json", exclude_none=True, exclude={"code"})
    if failure.stderr_tail is not None:
        told["stderr_tail"] = tail(clean(failure.stderr_tail).encode("utf-8"), stderr_tail_bytes)
    return {key: scrub(value) if isinstance(value, str) else value for key, value in told.items()}


def scrub(text: str) -> str:
    """`text` with URLs and our own secrets replaced."""
    return _SECRET.sub(REDACTED, _URL.sub("[url]", clean(text)))
