"""Two recordings of the same database, the later one held against the earlier: what is final stays, and nothing is taken back.

One recording cannot show that something final was rewritten; whoever can look twice (a test around a crash, around a restart)
sees more. The rules are about facts that are in both, and about such that have disappeared.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from turnkeeper.domain.history.facts import History
from turnkeeper.domain.history.rules import Finding, broken
from turnkeeper.domain.membership import LIVE_ACTIVATIONS, MembershipState
from turnkeeper.domain.run import TERMINAL

_FINAL_CONVERSATION = {"lost": ("lost", "closed"), "closed": ("closed",)}
Compared = Iterator[tuple[str, str]]
F = TypeVar("F")


class _Named(Protocol):
    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=_Named)


def _pairs(before: Sequence[F], after: Sequence[F], key: Callable[[F], Hashable]) -> Iterator[tuple[F, F]]:
    """Each fact of `before` with what it has become."""
    later = {key(one): one for one in after}
    for one in before:
        if key(one) in later:
            yield one, later[key(one)]


def _by_id(before: Sequence[N], after: Sequence[N]) -> Iterator[tuple[N, N]]:
    return _pairs(before, after, lambda one: one.id)


def lost_never_leaves(before: History, after: History) -> Compared:
    """A lost membership stays lost for the same reason; a lost or closed conversation is never open again (R-05)."""
    for old, new in _by_id(before.memberships, after.memberships):
        was_lost = old.state == MembershipState.LOST
        if was_lost and (new.state, new.lost_reason) != (old.state, old.lost_reason):
            yield old.id, f"membership {old.id} was lost ({old.lost_reason}) and is {new.state} ({new.lost_reason})"
    for old, new in _pairs(before.conversations, after.conversations, lambda one: one.thread_id):
        if new.state not in _FINAL_CONVERSATION.get(old.state, (new.state,)):
            yield old.thread_id, f"conversation {old.thread_id} was {old.state} and is {new.state}"


def terminal_run_never_moves(before: History, after: History) -> Compared:
    """A run that has ended stays as it ended; its cleanup flag alone still moves (A-03, C-01)."""
    for old, new in _by_id(before.runs, after.runs):
        if old.status in TERMINAL and (old.status, old.ended_at) != (new.status, new.ended_at):
            yield old.id, f"run {old.id} had ended {old.status} and is {new.status}"


def closed_attempt_is_never_rewritten(before: History, after: History) -> Compared:
    """The record of an attempt that has ended is never changed (E-04)."""
    for old, new in _by_id(before.attempts, after.attempts):
        if old.ended_at is not None and old != new:
            yield broken(
                old.id,
                f"attempt {old.id} of run {old.run_id} had ended {old.outcome} and was changed: {_what(old, new)}",
            )


def admission_is_never_taken_back(before: History, after: History) -> Compared:
    """An admission stays, and an activation that has ended stays as it ended (R-03, F-06)."""
    for old, new in _by_id(before.activations, after.activations):
        if old.admitted_at is not None and new.admitted_at != old.admitted_at:
            yield old.id, f"activation {old.id} of run {old.run_id} was admitted, and its admission was changed"
        if old.state not in LIVE_ACTIVATIONS and old != new:
            yield old.id, f"activation {old.id} of run {old.run_id} was {old.state} and was changed: {_what(old, new)}"


def nothing_counts_backwards(before: History, after: History) -> Compared:
    """Fences, native turns, epochs and event numbers never fall (F-06, D-03, A-03)."""
    for old, new in _by_id(before.memberships, after.memberships):
        if new.fence < old.fence or new.native_turn < old.native_turn:
            yield old.id, f"membership {old.id} has fallen: {_what(old, new)}"
    for old, new in _by_id(before.workspaces, after.workspaces):
        if new.epoch < old.epoch:
            yield old.id, f"workspace {old.id} has fallen: {_what(old, new)}"
    for old, new in _pairs(before.conversations, after.conversations, lambda one: one.thread_id):
        if new.last_seq < old.last_seq or new.dropped_before < old.dropped_before:
            yield old.thread_id, f"conversation {old.thread_id} has fallen: {_what(old, new)}"


def nothing_disappears(before: History, after: History) -> Compared:
    """What was recorded is still there: conversations, runs, attempts, activations, messages, terminal events (A-01, A-03, R-06)."""
    kept: list[tuple[str, Sequence[Any], Sequence[Any]]] = [
        ("run", before.runs, after.runs),
        ("attempt", before.attempts, after.attempts),
        ("membership", before.memberships, after.memberships),
        ("activation", before.activations, after.activations),
        ("message", before.messages, after.messages),
    ]
    for what, old, new in kept:
        there = {one.id for one in new}
        yield from ((one.id, f"{what} {one.id} is not there any more") for one in old if one.id not in there)
    threads = {one.thread_id for one in after.conversations}
    for one in before.conversations:
        if one.thread_id not in threads:
            yield one.thread_id, f"conversation {one.thread_id} is not there any more"
    dropped = {one.thread_id: one.dropped_before for one in after.conversations}
    ends = {(one.thread_id, one.first_seq) for one in after.events if one.is_end}
    for one in before.events:
        is_kept = one.first_seq >= dropped.get(one.thread_id, 0)
        if one.is_end and is_kept and (one.thread_id, one.first_seq) not in ends:
            yield (
                one.run_id or one.thread_id,
                f"the terminal event {one.first_seq} of run {one.run_id} is not there any more",
            )


def _what(old: object, new: object) -> str:
    """The fields that differ."""
    names = [name for name in getattr(old, "__dataclass_fields__", {}) if getattr(old, name) != getattr(new, name)]
    return ", ".join(f"{name} from {getattr(old, name)} to {getattr(new, name)}" for name in names)


SUCCESSION: Mapping[str, Callable[[History, History], Compared]] = MappingProxyType(
    {
        one.__name__: one
        for one in (
            lost_never_leaves,
            terminal_run_never_moves,
            closed_attempt_is_never_rewritten,
            admission_is_never_taken_back,
            nothing_counts_backwards,
            nothing_disappears,
        )
    }
)
"""Every rule about two recordings, by its name."""


def check_succession(before: History, after: History) -> list[Finding]:
    """What the later recording breaks of the earlier one. Both are of whole scopes, and `before` was made first."""
    return [
        Finding(name, subject, text) for name, compare in SUCCESSION.items() for subject, text in compare(before, after)
    ]
