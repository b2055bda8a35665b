"""Cancelling a run and everything below it (T-01). Asking again gets the same answer and changes nothing."""

from turnkeeper.domain.errors import ErrorCode, InvariantViolation
from turnkeeper.domain.run import TERMINAL, RunStatus
from turnkeeper.kit.ids import is_id
from turnkeeper.services.answers import NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.dispatch import recompute
from turnkeeper.services.ending import begin_closing
from turnkeeper.services.runs import NO_RUN
from turnkeeper.services.tree import lock_tree, stop_run
from turnkeeper.services.views import run_of
from turnkeeper.store import run_views, runs
from turnkeeper.store.tx import Tx
from turnkeeper.wire.public import Run


async def cancel(s: Services, owner: Owner, run_id: str) -> Run | NotFound:
    """The run after it: a waiting one is cancelled, a running one was asked to stop, an ended one is as it was."""
    if not is_id(run_id):
        return NO_RUN
    seen = await s.db.read("cancel.run", lambda r: runs.get_run(r, run_id))
    if seen is None or seen.uid != owner.uid:
        return NO_RUN

    async def work(tx: Tx) -> Run:
        closing = await begin_closing(tx, s, seen.runtime_scope_id, seen.uid)
        tree = await lock_tree(tx, seen)
        if RunStatus(tree.target.status) not in TERMINAL:
            for run in (tree.target, *tree.descendants):
                await stop_run(tx, s, closing, run, tree.attempt_of(run.id), ErrorCode.CANCELLED)
            await recompute(tx, s, seen.runtime_scope_id, closing.owner, others_are_asked=closing.gives_out)
            await closing.outbox.flush(tx)
        view = await run_views.get_view(tx, owner.uid, run_id)
        if view is None:
            raise InvariantViolation(f"run {run_id} has disappeared")
        return run_of(view, owner)

    return await s.db.run("cancel", work)
