"""LOST: a conversation that cannot be continued (protocol 3 and 7, R-05, R-06).

Final. The waiting runs end with a clear code, so that no queue is burnt or left hanging; the root conversation's loss
raises the cleanup fence; the Workdir hold stays until the delete is confirmed. An event of the conversation tells the owner
in plain words. It belongs to no run: the verdict often comes after the end of the run that it is about, and nothing
follows a run's end (A-03).
"""

from collections.abc import Sequence

from turnkeeper.domain.errors import ErrorCode, lost_sentence
from turnkeeper.domain.run import RunEvent, RunStatus
from turnkeeper.services.context import Services
from turnkeeper.services.ending import Closing, end_run
from turnkeeper.services.leased import must
from turnkeeper.services.wakes import CLEANUP
from turnkeeper.store import cleanup, conversations, memberships
from turnkeeper.store.events import NewEvent
from turnkeeper.store.memberships import MembershipRow
from turnkeeper.store.runs import RunRow
from turnkeeper.store.tx import Tx
from turnkeeper.wire.turn import EventKind


async def lose(
    tx: Tx,
    s: Services,
    closing: Closing,
    membership: MembershipRow,
    scope: str,
    scope_runs: Sequence[RunRow],
    *,
    reason: str,
    but: str | None = None,
) -> None:
    """Make a membership and its conversation `lost`. `scope_runs` are the scope's live runs, locked; `but` is the run

    that the caller itself ends after this. Of several who decide, the one whose statement finds state and fence wins:
    the caller has looked at both under the membership's lock.
    """
    must(
        await memberships.lose(
            tx, membership_id=membership.id, fence=membership.fence, source=membership.state, reason=reason
        ),
        f"loss of membership {membership.id}",
    )
    if await conversations.end_conversation(tx, membership.thread_id, "lost"):
        data = {"state": "lost", "code": reason, "text": lost_sentence(closing.owner.tongue)}
        closing.outbox.add(membership.thread_id, NewEvent(None, EventKind.CONVERSATION, data))
    if membership.thread_id == scope:
        await raise_fence(tx, closing, scope)
        waiting = [run for run in scope_runs if run.status == RunStatus.PENDING]
    else:
        waiting = [
            run for run in scope_runs if run.status == RunStatus.PENDING and run.thread_id == membership.thread_id
        ]
    await end_waiting(tx, s, closing, [run for run in waiting if run.id != but])


async def raise_fence(tx: Tx, closing: Closing, scope: str) -> None:
    """Raise the scope's cleanup fence (C-01) and wake whoever works behind it. The runs of the scope are locked."""
    closing.flagged_run_id = await cleanup.raise_fence(tx, scope)
    tx.notify(CLEANUP)


async def end_waiting(tx: Tx, s: Services, closing: Closing, waiting: Sequence[RunRow]) -> None:
    """End waiting runs whose conversation cannot go on."""
    for run in waiting:
        await end_run(tx, s, closing, run, RunEvent.WAITING_FAILED, code=ErrorCode.SESSION_UNAVAILABLE)
