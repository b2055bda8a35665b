"""Nothing stays stuck: whatever is not final has a live lease, a reason to wait, or somebody who is about to decide."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from turnkeeper.domain.dispatch import ConversationState, DispatchFacts, NotReady, Ready, WaitReason, ready
from turnkeeper.domain.history.book import Book
from turnkeeper.domain.history.facts import ConversationFact, MembershipFact, RunFact
from turnkeeper.domain.history.rules import broken, rule
from turnkeeper.domain.membership import LIVE_ACTIVATIONS, MembershipState
from turnkeeper.domain.run import LEASED, LIVE, RunKind, RunStatus

_NO_REASON = (WaitReason.CANCELLED, WaitReason.CONVERSATION_CLOSED)
"""What ends a waiting run in the transaction in which it becomes true: nobody waits for that."""


@rule
def nothing_stays_stuck(book: Book) -> Iterator[tuple[str, str]]:
    """What is not terminal has a live lease, is ready or waits for a reason, or awaits a verdict within its bound (L-11, D-01)."""
    for run in book.history.runs:
        if run.status == RunStatus.PENDING:
            yield from _waiting(book, run)
        elif run.status in LEASED:
            yield from _leased(book, run)
        elif run.status == RunStatus.RECOVERING:
            yield from _recovering(book, run)
    for membership in book.history.memberships:
        yield from _in_use(book, membership)


@rule
def ready_run_may_start(book: Book) -> Iterator[tuple[str, str]]:
    """A run that is ready heads its line, and its conversation, membership and scope let it start (D-01)."""
    for run in book.history.runs:
        facts = None if run.ready_at is None else _facts(book, run, owner_room=True)
        if facts is None:
            continue
        decided = ready(facts)
        reasons = decided.reasons if isinstance(decided, NotReady) else ()
        # The fence has a rule of its own, and so has a conversation that is lost.
        others = [one for one in reasons if one not in _ELSEWHERE]
        if others:
            yield run.id, f"run {run.id} is ready, and it may not start: {', '.join(others)}"


_ELSEWHERE = (WaitReason.CLEANUP_PENDING, WaitReason.CONVERSATION_LOST, WaitReason.MEMBERSHIP_LOST)


def _facts(book: Book, run: RunFact, *, owner_room: bool) -> DispatchFacts | None:
    """What readiness depends on. None where it is not recorded, or in words that nobody knows (which is a rule of its own)."""
    conversation = book.conversations.get(run.thread_id)
    membership = book.membership_of_thread.get(run.thread_id)
    if conversation is None or not _are_known(run, conversation, membership):
        return None
    earlier = [
        one
        for one in book.runs_of_thread.get(run.thread_id, [])
        if one.status in LIVE or (one.status == RunStatus.PENDING and one.queue_position < run.queue_position)
    ]
    scope = book.runs_of_scope.get(run.runtime_scope_id, [])
    return DispatchFacts(
        status=RunStatus(run.status),
        kind=RunKind(run.kind),
        cancel_requested=run.cancel_requested_at is not None,
        heads_line=not any(one.id != run.id for one in earlier),
        conversation=ConversationState(conversation.state),
        queue_paused=conversation.queue_paused,
        membership=None if membership is None else MembershipState(membership.state),
        cleanup_pending=bool(book.flagged_of_scope.get(run.runtime_scope_id)),
        other_tree_live=any(one.status in LIVE and one.root_run_id != run.root_run_id for one in scope),
        owner_room=owner_room,
    )


def _are_known(run: RunFact, conversation: ConversationFact, membership: MembershipFact | None) -> bool:
    return (
        run.status in set(RunStatus)
        and run.kind in set(RunKind)
        and conversation.state in set(ConversationState)
        and (membership is None or membership.state in set(MembershipState))
    )


def _waiting(book: Book, run: RunFact) -> Iterator[tuple[str, str]]:
    facts = None if run.ready_at is not None else _facts(book, run, owner_room=_has_room(book, run))
    if facts is None:
        return
    decided = ready(facts)
    name = f"run {run.id} of conversation {run.thread_id}"
    if isinstance(decided, Ready):
        still_s = _seconds(book, _last_change(book, run))
        if still_s > book.history.slack_s:
            yield run.id, f"{name} may start and is not ready, and nothing has changed for {still_s:.0f} s"
        return
    for reason in decided.reasons:
        if reason in _NO_REASON:
            yield run.id, f"{name} is still pending: {reason}"
            return


def _has_room(book: Book, run: RunFact) -> bool:
    owner = next((one for one in book.history.owners if one.uid == run.uid), None)
    if owner is None:
        return False  # not recorded: that may be what it waits for
    counted = any(
        one.root_run_id == run.root_run_id and (one.status in LIVE or one.ready_at is not None)
        for one in book.runs_of_scope.get(run.runtime_scope_id, [])
    )
    return counted or owner.live_trees < owner.tree_room


def _last_change(book: Book, run: RunFact) -> datetime:
    """The newest moment at which something that readiness depends on may have changed."""
    scope = book.runs_of_scope.get(run.runtime_scope_id, [])
    owner = next((one for one in book.history.owners if one.uid == run.uid), None)
    moments: list[datetime | None] = [
        book.conversations[run.thread_id].updated_at,
        None if owner is None else owner.last_end_at,
    ]
    for one in scope:
        attempts = book.attempts_of_run.get(one.id, [])
        moments += [one.created_at, one.ended_at, *(attempt.ended_at for attempt in attempts)]
    return max(moment for moment in moments if moment is not None)


def _leased(book: Book, run: RunFact) -> Iterator[tuple[str, str]]:
    attempt = next((one for one in book.attempts_of_run.get(run.id, []) if one.ended_at is None), None)
    if attempt is None:
        yield run.id, f"run {run.id} is {run.status} and has no open attempt"
    elif attempt.lease_expires_at is not None:
        over_s = _seconds(book, attempt.lease_expires_at)
        if over_s > book.history.timing.reap_grace_s + book.history.slack_s:
            yield broken(
                run.id,
                f"run {run.id} is {run.status}, and the lease of its attempt {attempt.id} ended {over_s:.0f} s ago",
            )


def _recovering(book: Book, run: RunFact) -> Iterator[tuple[str, str]]:
    ends = [one.ended_at for one in book.attempts_of_run.get(run.id, []) if one.ended_at is not None]
    waited_s = _seconds(book, max(ends, default=run.created_at))
    if waited_s > book.history.timing.recovery_bound_s + book.history.slack_s:
        yield run.id, f"run {run.id} has been recovering for {waited_s:.0f} s"


def _in_use(book: Book, membership: MembershipFact) -> Iterator[tuple[str, str]]:
    activation = book.activations.get(membership.activation_id or "")
    if activation is None:
        return
    attempt = book.attempts.get(activation.attempt_id)
    if attempt is None or attempt.ended_at is None:
        return
    name = f"membership {membership.id} of conversation {membership.thread_id}"
    if membership.state == MembershipState.QUARANTINED:
        waited_s = _seconds(book, attempt.ended_at)
        if waited_s > book.history.timing.recovery_bound_s + book.history.slack_s:
            yield membership.id, f"{name} has been quarantined for {waited_s:.0f} s without a verdict"
    elif membership.state == MembershipState.ACTIVE and activation.state not in LIVE_ACTIVATIONS:
        yield broken(
            membership.id,
            f"{name} is still in use by activation {activation.id}, which is {activation.state}; its attempt "
            f"{attempt.id} has ended",
        )


def _seconds(book: Book, since: datetime) -> float:
    return (book.history.now - since) / timedelta(seconds=1)
