"""Making waiting runs claimable, and taking them out again (D-01; protocol 3).

Whoever changes a fact of readiness holds the scope lock and the owner's row, and calls `recompute` before it stores its
events. The owner's row orders everybody who gives out the owner's room, and a tree that finds none notes since when it
waits: the scopes of an owner take turns, the longest waiting first. What becomes free for *another* scope is given
out by a transaction of its own after the commit: a second scope lock in one transaction could deadlock.
"""

from dataclasses import dataclass

from turnkeeper.domain.dispatch import ConversationState, DispatchFacts, Ready, ready
from turnkeeper.domain.errors import InvariantViolation, Language
from turnkeeper.domain.membership import MembershipState
from turnkeeper.domain.run import RunKind, RunStatus
from turnkeeper.services.context import Services
from turnkeeper.store import dispatch as statements
from turnkeeper.store.dispatch import Tree, WaitingRun
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


@dataclass(frozen=True)
class Recomputed:
    """The ids of the runs that became ready; whether there is room that somebody who waits longer is to have; whether none is left."""

    ready: frozenset[str] = frozenset()
    leaves_room: bool = False
    full: bool = False


async def lock_line(tx: Tx, scope: str, uid: str) -> OwnerRow:
    """Ranks 0 and 1, in this order, of whatever may set `ready_at` or take a Workdir hold."""
    await lock_scope(tx, scope)
    owner = await lock_owner(tx, uid, OwnerRow)
    if owner is None:
        raise InvariantViolation(f"owner {uid} of scope {scope} does not exist")
    return owner


async def recompute(tx: Tx, s: Services, scope: str, owner: OwnerRow, *, others_are_asked: bool = False) -> Recomputed:
    """Set `ready_at` of the scope's waiting runs to what the facts say.

    Before any event is stored: runs are rank 2. Where it leaves room to other scopes they are given it after the commit,
    unless somebody does that already (`others_are_asked`).
    """
    waiting = await statements.waiting_runs(tx, scope)
    if not waiting:
        return Recomputed()
    may_start = {run.id for run in waiting if _may_start(run, owner_room=True)}
    leaving = [
        run.id for run in waiting if run.id not in may_start and (run.is_ready or run.room_wanted_at is not None)
    ]
    if leaving:
        await statements.clear_ready(tx, leaving)
    candidates = [run for run in waiting if not run.is_ready and run.id in may_start]
    done = await _share_out(tx, s, scope, owner, candidates) if candidates else Recomputed()
    if (leaving or done.leaves_room) and not others_are_asked:
        dispatch_others_after(tx, s, owner.uid)
    return done


async def _share_out(tx: Tx, s: Services, scope: str, owner: OwnerRow, candidates: list[WaitingRun]) -> Recomputed:
    """Make ready what there is room for, after those of other scopes that have waited for it longer.

    Without them the scope whose turn has just ended would always come first: its recomputation is in the transaction that
    frees the room, and theirs come after it. All marks of the owner are set and read under the owner's row.
    """
    room = owner.tree_room or s.limits.trees_per_owner
    trees = await statements.trees_of_owner(tx, owner.uid, but_scope=scope, waiting_max=room)
    held = {tree.root_run_id for tree in trees if tree.wanted_at is None}
    others = [tree for tree in trees if tree.wanted_at is not None]
    made: set[str] = set()
    refused: list[str] = []
    leaves_room = False
    for run in candidates:
        before = {other.root_run_id for other in others if _waits_longer(other, run)}
        if run.root_run_id not in held and len(held | before) >= room:
            refused.append(run.id)
            leaves_room = leaves_room or len(held) < room
            continue
        held.add(run.root_run_id)
        if await statements.set_ready(tx, run.id, run.provisioner):
            made.add(run.id)
            tx.notify(READY)
    if refused:
        await statements.set_room_wanted(tx, refused)
    return Recomputed(frozenset(made), leaves_room=leaves_room, full=len(held) >= room)


def _waits_longer(other: Tree, run: WaitingRun) -> bool:
    if other.wanted_at is None or run.room_wanted_at is None:  # it begins to wait now
        return other.wanted_at is not None
    return (other.wanted_at, other.queue_position) < (run.room_wanted_at, run.queue_position)


def dispatch_others_after(tx: Tx, s: Services, uid: str) -> None:
    """After the commit, give out what room this transaction may have left to the owner's other scopes."""

    async def give_out() -> None:
        await dispatch_owner(s, uid)

    tx.after_commit(give_out)


async def dispatch_owner(s: Services, uid: str) -> int:
    """Give out the owner's room to the scopes that wait for it, the longest waiting first; how many were looked at."""
    scopes = await s.db.read("dispatch.waiting", lambda r: statements.scopes_waiting_for_room(r, uid, _SCOPES_MAX))
    for number, scope in enumerate(scopes, 1):
        if (await dispatch_scope(s, scope, uid)).full:
            return number
    return len(scopes)


async def dispatch_scope(s: Services, scope: str, uid: str) -> Recomputed:
    """Recompute one scope in a transaction of its own."""

    async def work(tx: Tx) -> Recomputed:
        owner = await lock_line(tx, scope, uid)
        return await recompute(tx, s, scope, owner, others_are_asked=True)

    return await s.db.run("dispatch", work)


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
