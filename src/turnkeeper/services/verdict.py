"""The verdict over a quarantined membership, in this release's form: from the database alone.

Never admitted: the prompt cannot have been sent (F-05), and the next take is the barrier; the activation is *not
delivered* and the conversation goes on. Admitted and not settled: it cannot be proven what the agent got, so the
conversation is LOST (R-02). The run has ended already, by `finish` or by the reaper.
"""

from turnkeeper.domain.errors import ErrorCode
from turnkeeper.domain.run import RunEvent, RunStatus
from turnkeeper.services.context import Services
from turnkeeper.services.dispatch import dispatch_others_after, recompute
from turnkeeper.services.ending import Closing, begin_closing, end_run
from turnkeeper.services.leased import must
from turnkeeper.services.losing import lose
from turnkeeper.store import activations, memberships
from turnkeeper.store.activations import ActivationRow
from turnkeeper.store.locks import lock_activation, lock_membership, lock_scope_runs
from turnkeeper.store.memberships import MembershipRow, Quarantined
from turnkeeper.store.runs import RunRow
from turnkeeper.store.tx import Tx


async def give_verdict(s: Services, thread_id: str, fence: int, scope: str, uid: str) -> str | None:
    """`idle` or `lost`. None: somebody else has given it, or the membership has moved on since `fence`."""

    async def work(tx: Tx) -> str | None:
        closing = await begin_closing(tx, s, scope, uid)
        scope_runs = await lock_scope_runs(tx, scope, RunRow)
        membership = await lock_membership(tx, thread_id, MembershipRow)
        if membership is None or membership.state != "quarantined" or membership.fence != fence:
            return None
        activation = await lock_activation(tx, membership.activation_id or "", ActivationRow)
        if activation is None:
            return None
        admitted = activation.admitted_at is not None
        must(
            await activations.end_activation(
                tx, activation.id, source="quarantined", state="lost" if admitted else "not_delivered"
            ),
            "verdict on an activation",
        )
        if admitted:
            await lose(tx, s, closing, membership, scope, scope_runs, reason="outcome_unknown", but=activation.run_id)
        else:
            must(
                await memberships.leave(
                    tx, membership_id=membership.id, activation_id=activation.id, fence=fence, source="quarantined",
                    state="idle",
                ),
                "verdict on a membership",
            )  # fmt: skip
        await _end_recovering(tx, s, closing, scope_runs, activation.run_id)
        await recompute(tx, s, scope, closing.owner, others_are_asked=True)
        await closing.outbox.flush(tx)
        dispatch_others_after(tx, s, uid)
        return "lost" if admitted else "idle"

    return await s.db.run("verdict", work)


async def _end_recovering(tx: Tx, s: Services, closing: Closing, scope_runs: list[RunRow], run_id: str) -> None:
    for run in scope_runs:
        if run.id == run_id and run.status == RunStatus.RECOVERING:
            await end_run(tx, s, closing, run, RunEvent.VERDICT_FAILED, code=ErrorCode.OUTCOME_UNKNOWN)


async def give_verdicts(s: Services, limit: int = 100) -> int:
    """Every verdict that waits; how many were given by this call."""
    waiting: list[Quarantined] = await s.db.read("verdict.waiting", lambda r: memberships.list_quarantined(r, limit))
    given = 0
    for one in waiting:
        given += await give_verdict(s, one.thread_id, one.fence, one.runtime_scope_id, one.uid) is not None
    return given
