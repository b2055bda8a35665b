"""Making waiting runs claimable, and taking them out again (D-01; protocol 3).

Whoever changes a fact of readiness holds the scope lock and the owner's row, and calls `recompute` before it stores its
events. The owner's row orders everybody who gives out the owner's room. What becomes free for *another* scope is given
out by a transaction of its own after the commit: a second scope lock in one transaction could deadlock.
"""

from dataclasses import dataclass

from turnkeeper.domain.dispatch import ConversationState, DispatchFacts, Ready, ready
from turnkeeper.domain.errors import InvariantViolation, Language
from turnkeeper.domain.membership import MembershipState
from turnkeeper.domain.run import RunKind, RunStatus
from turnkeeper.services.context import Services
from turnkeeper.store import dispatch as statements
from turnkeeper.store.dispatch import WaitingRun
from turnkeeper.store.locks import lock_owner, lock_scope
from turnkeeper.store.signals import READY
from turnkeeper.store.tx import Tx


@dataclass(frozen=True)
class OwnerRow:
    """What a use case needs of an owner; locked at rank 1. `tree_room` None: the room that everybody has."""

    uid: str
    language: str
    tree_room: int | None

    @property
    def tongue(self) -> Language:
        """The owner's language."""
        return Language(self.language)


async def lock_line(tx: Tx, scope: str, uid: str) -> OwnerRow:
    """Ranks 0 and 1, in this order, of whatever may set `ready_at` or take a Workdir hold."""
    await lock_scope(tx, scope)
    owner = await lock_owner(tx, uid, OwnerRow)
    if owner is None:
        raise InvariantViolation(f"owner {uid} of scope {scope} does not exist")
    return owner


async def recompute(tx: Tx, s: Services, scope: str, owner: OwnerRow) -> set[str]:
    """Set `ready_at` of the scope's waiting runs to what the facts say; the ids of those that became ready.

    Before any event is stored: runs are rank 2.
    """
    made: set[str] = set()
    waiting = await statements.waiting_runs(tx, scope)
    if not waiting:
        return made
    leaving = [run.id for run in waiting if run.is_ready and not _may_start(run, owner_room=True)]
    if leaving:
        await statements.clear_ready(tx, leaving)
    candidates = [run for run in waiting if not run.is_ready and _may_start(run, owner_room=True)]
    if not candidates:
        return made
    trees = await statements.trees_of_owner(tx, owner.uid)
    room = owner.tree_room or s.limits.trees_per_owner
    for run in candidates:
        has_room = run.root_run_id in trees or len(trees) < room
        if _may_start(run, owner_room=has_room):
            trees.add(run.root_run_id)
            if await statements.set_ready(tx, run.id, run.provisioner):
                made.add(run.id)
                tx.notify(READY)
    return made


def dispatch_others_after(tx: Tx, s: Services, uid: str) -> None:
    """After the commit, give out what room this transaction may have left to the owner's other scopes."""

    async def give_out() -> None:
        await dispatch_owner(s, uid)

    tx.after_commit(give_out)


async def dispatch_owner(s: Services, uid: str) -> int:
    """Recompute the owner's scopes that wait and have nothing ready or live, the longest waiting first; how many."""
    scopes = await s.db.read("dispatch.waiting", lambda r: statements.scopes_waiting_for_room(r, uid, _SCOPES_MAX))
    for scope in scopes:
        await dispatch_scope(s, scope, uid)
    return len(scopes)


async def dispatch_scope(s: Services, scope: str, uid: str) -> None:
    """Recompute one scope in a transaction of its own."""

    async def work(tx: Tx) -> None:
        owner = await lock_line(tx, scope, uid)
        await recompute(tx, s, scope, owner)

    await s.db.run("dispatch", work)


_SCOPES_MAX = 100


def _may_start(run: WaitingRun, *, owner_room: bool) -> bool:
    facts = DispatchFacts(
        status=RunStatus.PENDING,
        kind=RunKind(run.kind),
        cancel_requested=run.cancel_requested,
        heads_line=run.heads_line,
        conversation=ConversationState(run.conversation),
        queue_paused=run.queue_paused,
        membership=None if run.membership is None else MembershipState(run.membership),
        cleanup_pending=run.cleanup_pending,
        other_tree_live=run.other_tree_live,
        owner_room=owner_room,
    )
    return isinstance(ready(facts), Ready)
