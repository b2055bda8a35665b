"""The end of a turn: what `finish`, the reaper and a host's report of a gone child have in common.

They differ in the right by which they close the attempt. Everything after that is one path: the facts decide
(`decide`), the membership moves, the descendants are asked to stop (T-06), the run ends, the line moves on.
"""

from dataclasses import dataclass
from typing import Any

from turnkeeper.domain.errors import ErrorCode
from turnkeeper.domain.membership import ActivationState
from turnkeeper.domain.run import RunStatus
from turnkeeper.services.context import Services
from turnkeeper.services.decide import Move, TurnEnd, TurnFacts, Word, decide_end
from turnkeeper.services.dispatch import recompute
from turnkeeper.services.ending import Closing, begin_closing, end_run
from turnkeeper.services.leased import must
from turnkeeper.services.losing import lose, raise_fence
from turnkeeper.services.tree import Tree, lock_tree, stop_run
from turnkeeper.services.wakes import VERDICTS
from turnkeeper.store import activations, conversations, events, memberships
from turnkeeper.store.activations import ActivationRow
from turnkeeper.store.attempts import AttemptRow
from turnkeeper.store.events import NewEvent
from turnkeeper.store.locks import lock_activation, lock_membership
from turnkeeper.store.memberships import MembershipRow
from turnkeeper.store.runs import RunPlace, RunRow
from turnkeeper.store.tx import Tx
from turnkeeper.wire.turn import EventKind, Outcome


@dataclass(frozen=True)
class LockedTurn:
    """A turn with everything that its end touches, locked. `attempt` None: that attempt is closed already.

    `activation` is the membership's current one, if it belongs to this attempt. `is_ephemeral`: a root run whose end raises
    the cleanup fence (C-09).
    """

    closing: Closing
    tree: Tree
    attempt: AttemptRow | None
    membership: MembershipRow | None
    activation: ActivationRow | None
    is_ephemeral: bool

    @property
    def run(self) -> RunRow:
        """The turn's run."""
        return self.tree.target


async def lock_turn(tx: Tx, s: Services, run: RunPlace, attempt_id: str, *, may_lose: bool = False) -> LockedTurn:
    """Ranks 0 to 6. `run` was read without a lock; `may_lose` where the end may make the conversation LOST.

    Where the end may raise a cleanup fence, every live run of the scope is locked: a claim is before it, or finds none.
    """
    is_ephemeral = run.depth == 0 and run.runtime_policy == "ephemeral"
    closing = await begin_closing(tx, s, run.runtime_scope_id, run.uid)
    tree = await lock_tree(tx, run, whole_scope=may_lose or is_ephemeral)
    attempt = tree.attempt_of(run.id)
    if attempt is not None and attempt.id != attempt_id:
        attempt = None
    membership = await lock_membership(tx, run.thread_id, MembershipRow)
    activation: ActivationRow | None = None
    if membership is not None and membership.activation_id is not None:
        current = await lock_activation(tx, membership.activation_id, ActivationRow)
        activation = current if current is not None and current.attempt_id == attempt_id else None
    return LockedTurn(closing, tree, attempt, membership, activation, is_ephemeral)


def facts_of(turn: LockedTurn, word: Word, *, status: str | None = None, code: ErrorCode | None = None) -> TurnFacts:
    """The facts that decide the end."""
    activation = turn.activation
    return TurnFacts(
        word=word,
        activation=None if activation is None else ActivationState(activation.state),
        outcome=None if activation is None or activation.outcome is None else Outcome(activation.outcome),
        settled_error=None if activation is None or activation.error_code is None else ErrorCode(activation.error_code),
        final_message="" if activation is None else activation.final_message or "",
        cancel_requested=turn.run.cancel_requested_at is not None,
        claimed_status=status,
        claimed_code=code,
    )


async def conclude(
    tx: Tx, s: Services, turn: LockedTurn, facts: TurnFacts, end: TurnEnd, detail: dict[str, Any] | None
) -> RunStatus:
    """Everything after the attempt was closed, up to and including the events."""
    closing, run = turn.closing, turn.run
    await _move_membership(tx, s, turn, end.move)
    if turn.is_ephemeral:
        await raise_fence(tx, closing, run.runtime_scope_id)
    for child in turn.tree.descendants:
        await stop_run(tx, s, closing, child, turn.tree.attempt_of(child.id), ErrorCode.EXECUTION_TREE_CLOSED)
    if end.settled:
        await _add_settled_notice(tx, turn)
    status = await end_run(
        tx,
        s,
        closing,
        run,
        end.event,
        code=end.code,
        detail=detail,
        output=facts.final_message if end.settled else None,
        written=True if end.settled else None,
    )
    await conversations.touch_conversation(tx, run.thread_id)
    await recompute(tx, s, run.runtime_scope_id, closing.owner, others_are_asked=closing.gives_out)
    await closing.outbox.flush(tx)
    return status


async def _add_settled_notice(tx: Tx, turn: LockedTurn) -> None:
    """The worker uploads this notice; where that failed (F-03), the end of the run makes good for it."""
    run, activation = turn.run, turn.activation
    if activation is None or await events.has_kind(tx, run.id, EventKind.SHARED_WORKSPACE_SETTLED):
        return
    data = {
        "epoch": activation.epoch,
        "native_turn": activation.native_turn,
        "native_session": activation.native_session,
    }
    turn.closing.outbox.add(run.thread_id, NewEvent(run.id, EventKind.SHARED_WORKSPACE_SETTLED, data))


async def _move_membership(tx: Tx, s: Services, turn: LockedTurn, move: Move) -> None:
    membership, activation = turn.membership, turn.activation
    if move is Move.KEEP or membership is None or activation is None:
        return
    match move:
        case Move.FREE:
            must(
                await memberships.leave(
                    tx,
                    membership_id=membership.id,
                    activation_id=activation.id,
                    fence=membership.fence,
                    source="active",
                    state="idle",
                ),
                "settled membership",
            )
        case Move.QUARANTINE:
            must(
                await memberships.quarantine(
                    tx, membership_id=membership.id, activation_id=activation.id, fence=membership.fence
                ),
                "quarantine",
            )
            must(
                await activations.end_activation(tx, activation.id, source=activation.state, state="quarantined"),
                "quarantined activation",
            )
            tx.notify(VERDICTS)
        case Move.LOSE:
            must(
                await activations.end_activation(tx, activation.id, source=activation.state, state="lost"),
                "lost activation",
            )
            await lose(
                tx, s, turn.closing, membership, turn.run.runtime_scope_id, turn.tree.scope_runs,
                reason="session_unavailable", but=turn.run.id,
            )  # fmt: skip


def decide(
    turn: LockedTurn, word: Word, *, status: str | None = None, code: ErrorCode | None = None
) -> tuple[TurnFacts, TurnEnd]:
    """The facts of a locked turn, and what they decide."""
    facts = facts_of(turn, word, status=status, code=code)
    return facts, decide_end(facts)
