"""Locking an execution tree and asking parts of it to stop (T-01, T-06).

Root first among runs, then the target, then its descendants level by level. The scope lock is held above all of it.
"""

from dataclasses import dataclass

from turnkeeper.domain.errors import ErrorCode, InvariantViolation
from turnkeeper.domain.run import LEASED, RunEvent, RunStatus
from turnkeeper.services.context import Services
from turnkeeper.services.ending import Closing, end_run
from turnkeeper.store import attempts, runs
from turnkeeper.store.attempts import AttemptRow
from turnkeeper.store.locks import lock_descendants, lock_open_attempts, lock_root, lock_run, lock_scope_runs
from turnkeeper.store.runs import RunPlace, RunRow
from turnkeeper.store.signals import run_signal
from turnkeeper.store.tx import Tx


@dataclass(frozen=True)
class Tree:
    """A locked run with its live descendants, the other live runs of its scope where asked for, and all open attempts."""

    target: RunRow
    descendants: tuple[RunRow, ...]
    scope_runs: tuple[RunRow, ...]
    attempts: tuple[AttemptRow, ...]

    def attempt_of(self, run_id: str) -> AttemptRow | None:
        """The open attempt of one of these runs."""
        return next((attempt for attempt in self.attempts if attempt.run_id == run_id), None)


async def lock_tree(tx: Tx, run: RunPlace | RunRow, *, whole_scope: bool = False) -> Tree:
    """Ranks 2 and 3: the run's root, the run, and what is live below it. `run` was read without a lock."""
    if run.root_run_id != run.id:
        await lock_root(tx, run.root_run_id)
    target = await lock_run(tx, run.id, RunRow)
    if target is None:
        raise InvariantViolation(f"run {run.id} has disappeared")
    scope_runs = await lock_scope_runs(tx, run.runtime_scope_id, RunRow) if whole_scope else []
    below = await lock_descendants(tx, run.root_run_id, run.id, run.depth, RunRow)
    ids = {target.id, *(one.id for one in scope_runs), *(one.id for one in below)}
    open_attempts = await lock_open_attempts(tx, sorted(ids), AttemptRow)
    return Tree(target, tuple(below), tuple(scope_runs), tuple(open_attempts))


async def stop_run(
    tx: Tx, s: Services, closing: Closing, run: RunRow, attempt: AttemptRow | None, code: ErrorCode
) -> None:
    """Ask one run to stop: a waiting one ends at once, one with a worker is told and gets the grace time, a recovering

    one keeps its state. `code` is what a waiting run ends with. Doing it again changes nothing.
    """
    status = RunStatus(run.status)
    if status is RunStatus.PENDING:
        await runs.request_cancel(tx, run.id)
        await end_run(tx, s, closing, run, RunEvent.CANCEL_REQUESTED, code=code)
        return
    if not await runs.request_cancel(tx, run.id):
        return
    if status in LEASED and attempt is not None:
        await attempts.lower_deadline(tx, attempt.id, seconds=s.timing.cancel_grace_s + s.timing.drain_s)
    if run.cancel_requested_at is None:
        shown = RunStatus.CANCEL_REQUESTED if status is RunStatus.RUNNING else status
        closing.outbox.run(run.thread_id, run.id, shown.value, cancel_requested=True)
    tx.notify(run_signal(run.id))
