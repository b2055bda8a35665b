"""Workdirs and sandboxes: who holds a Workdir, and what a cleanup fence keeps out."""

import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from turnkeeper.domain.history.book import Book, group
from turnkeeper.domain.history.facts import HoldFact
from turnkeeper.domain.history.rules import broken, rule
from turnkeeper.domain.run import TERMINAL, RunStatus


@rule
def workdir_holds_do_not_overlap(book: Book) -> Iterator[tuple[str, str]]:
    """No two open holds of one owner are for the same Workdir, or for one within the other (D-02)."""
    held = (one for one in book.history.holds if one.ended_at is None)
    for uid, holds in group(held, lambda one: one.uid).items():
        # In the order of the components whatever lies in a directory follows it, up to the first that does not.
        ordered = sorted(holds, key=lambda one: (_parts(one), one.id))
        for a, b in pairwise(ordered):
            if _parts(b)[: len(_parts(a))] == _parts(a):
                yield broken(
                    b.id,
                    f"hold {b.id} of scope {b.runtime_scope_id} on {b.workdir!r} and hold {a.id} of scope "
                    f"{a.runtime_scope_id} on {a.workdir!r} overlap; both are open and of owner {uid}",
                )


def _parts(hold: HoldFact) -> tuple[str, ...]:
    return tuple(unicodedata.normalize("NFC", hold.workdir).split("/"))


@rule
def open_conversation_holds_its_workdir(book: Book) -> Iterator[tuple[str, str]]:
    """An open chat holds its Workdir; a hold outlives its conversation only behind a cleanup fence (D-02)."""
    held = {one.runtime_scope_id: one for one in book.history.holds if one.ended_at is None}
    for conversation in book.history.conversations:
        scope = conversation.thread_id
        if conversation.kind != "chat":
            continue
        hold = held.get(scope)
        if conversation.state == "open" and hold is None:
            yield scope, f"conversation {scope} is open and does not hold its Workdir"
        if conversation.state != "open" and hold is not None and not book.flagged_of_scope.get(scope):
            yield broken(
                hold.id,
                f"hold {hold.id} is open, its conversation {scope} is {conversation.state}, and no cleanup is pending",
            )


@rule
def cleanup_fence_keeps_its_scope_still(book: Book) -> Iterator[tuple[str, str]]:
    """One root run carries a scope's cleanup fence, and while it is up no run of the scope is ready (C-01)."""
    for scope, flagged in book.flagged_of_scope.items():
        if len(flagged) > 1:
            names = ", ".join(sorted(one.id for one in flagged))
            yield scope, f"the cleanup fence of scope {scope} is carried by {len(flagged)} runs: {names}"
        for one in flagged:
            if one.depth != 0 or one.thread_id != scope:
                yield one.id, f"run {one.id} carries the cleanup fence of scope {scope} and is no root run of it"
        for one in book.runs_of_scope.get(scope, []):
            if one.ready_at is not None:
                yield one.id, f"run {one.id} is ready, and the cleanup fence of scope {scope} is up"


@rule
def terminal_event_waits_for_the_fence(book: Book) -> Iterator[tuple[str, str]]:
    """The end event of an ephemeral turn is appended by the transaction that clears the fence which it raised (C-01)."""
    for flagged in book.flagged_of_scope.values():
        for run in flagged:
            conversation = book.conversations.get(run.thread_id)
            # A fence that is raised later (close, LOST) may be carried by a run that has long had its end, and so may
            # one that another run's end raised, by a run that was cancelled while it waited: its turn never began.
            began = any(one.accepted_at is not None for one in book.attempts_of_run.get(run.id, []))
            its_own = (
                began
                and conversation is not None
                and (conversation.state, conversation.runtime_policy) == ("open", "ephemeral")
                and run.status in TERMINAL
                and run.status != RunStatus.INTERRUPTED
            )
            ends = [span for span in book.events_of_run.get(run.id, []) if span.is_end]
            if its_own and ends:
                yield broken(
                    run.id,
                    f"run {run.id} has its terminal event {ends[0].first_seq}, and its cleanup fence is still up",
                )
