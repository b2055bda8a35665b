"""One writer at a time: what was superseded writes nothing, and nothing of an older activation lives beside a newer one."""

from collections.abc import Iterator
from itertools import pairwise

from turnkeeper.domain.history.book import Book, group
from turnkeeper.domain.history.facts import ActivationFact, AttemptFact, ProcessSeen
from turnkeeper.domain.history.rules import broken, rule
from turnkeeper.domain.membership import ActivationState


@rule
def superseded_attempt_writes_nothing(book: Book) -> Iterator[tuple[str, str]]:
    """No write of an attempt is accepted after its end, or after its conversation's next attempt was claimed (L-11, F01)."""
    for attempts in book.attempts_of_thread.values():
        for attempt, following in [*pairwise(attempts), (attempts[-1], None)]:
            yield from _late_writes(book, attempt, following)


def _late_writes(book: Book, attempt: AttemptFact, following: AttemptFact | None) -> Iterator[tuple[str, str]]:
    writes = book.writes_of_attempt(attempt)
    name = f"attempt {attempt.id} (generation {attempt.lease_generation}) of run {attempt.run_id}"
    late = [] if following is None else [what for at, what in writes if at > following.claimed_at]
    if late and following is not None:
        yield attempt.id, f"{late[-1]} of {name} was accepted after attempt {following.id} was claimed"
        return
    late = [what for at, what in writes if attempt.ended_at is not None and at > attempt.ended_at]
    if late:
        yield attempt.id, f"{late[-1]} of {name} was accepted after that attempt had ended"
        return
    mine = book.events_of_attempt.get(attempt.id, [])
    theirs = [] if following is None else book.events_of_attempt.get(following.id, [])
    if mine and theirs and following is not None and mine[-1].last_seq > theirs[0].first_seq:
        yield broken(
            attempt.id,
            f"event {mine[-1].last_seq} of {name} comes after event {theirs[0].first_seq} of attempt {following.id}",
        )


@rule
def generations_do_not_overlap(book: Book) -> Iterator[tuple[str, str]]:
    """In a membership the accepted writes of one lease generation end before those of the next one begin (L-11, D-03)."""
    for membership_id, activations in book.activations_of_membership.items():
        for earlier, later in pairwise(activations):
            if earlier.attempt_id == later.attempt_id:
                continue
            before, after = book.attempts.get(earlier.attempt_id), book.attempts.get(later.attempt_id)
            if before is None or after is None:
                continue
            if after.lease_generation < before.lease_generation:
                yield broken(
                    later.id,
                    f"activation {later.id} (fence {later.fence}) of membership {membership_id} has lease generation "
                    f"{after.lease_generation}, and activation {earlier.id} before it {before.lease_generation}",
                )
            overlapping = [what for at, what in book.writes_of_attempt(before) if at > later.created_at]
            if overlapping:
                yield broken(
                    later.id,
                    f"activation {later.id} of attempt {after.id} was accepted in membership {membership_id} before "
                    f"{overlapping[-1]} of attempt {before.id}",
                )


@rule
def membership_fence_is_the_newest(book: Book) -> Iterator[tuple[str, str]]:
    """Every activation and every quarantine raises a membership's fence, and it is never below one of them (D-03, R-04)."""
    for membership in book.history.memberships:
        activations = book.activations_of_membership.get(membership.id, [])
        if activations and membership.fence < _fence_after(activations[-1]):
            yield broken(
                membership.id,
                f"membership {membership.id} has fence {membership.fence}; its activation {activations[-1].id} "
                f"({activations[-1].state}) asks for {_fence_after(activations[-1])}",
            )
        for earlier, later in pairwise(activations):
            if later.fence <= _fence_after(earlier):
                yield broken(
                    later.id,
                    f"activation {later.id} of membership {membership.id} has fence {later.fence}, and activation "
                    f"{earlier.id} ({earlier.state}) before it {earlier.fence}",
                )
            elif earlier.created_at > later.created_at:
                yield broken(
                    later.id,
                    f"activation {later.id} of membership {membership.id} has fence {later.fence} and is older than "
                    f"activation {earlier.id} with fence {earlier.fence}",
                )


def _was_quarantined(activation: ActivationFact) -> bool:
    """Whether a quarantine came after it. One that is lost without an admission had no session, and was lost at once."""
    if activation.state == ActivationState.LOST:
        return activation.admitted_at is not None
    return activation.state in (ActivationState.QUARANTINED, ActivationState.NOT_DELIVERED)


def _fence_after(activation: ActivationFact) -> int:
    """The fence that its membership has at least."""
    return activation.fence + _was_quarantined(activation)


@rule
def trees_of_a_scope_do_not_overlap(book: Book) -> Iterator[tuple[str, str]]:
    """No run of another execution tree of a scope is in a worker's hands at the same time (D-01)."""
    for scope, runs in book.runs_of_scope.items():
        trees: list[tuple[AttemptFact, AttemptFact, str]] = []
        for root, members in group(runs, lambda one: one.root_run_id).items():
            attempts = [attempt for run in members for attempt in book.attempts_of_run.get(run.id, [])]
            if attempts:
                first = min(attempts, key=lambda one: one.claimed_at)
                last = max(attempts, key=lambda one: (one.ended_at is None, one.ended_at or one.claimed_at))
                trees.append((first, last, root))
        trees.sort(key=lambda one: (one[0].claimed_at, one[0].lease_generation))
        for (_, last, root), (first, _, other) in pairwise(trees):
            if last.ended_at is None or last.ended_at > first.claimed_at:
                yield broken(
                    first.id,
                    f"attempt {first.id} of tree {other} was claimed in scope {scope} before attempt {last.id} of tree "
                    f"{root} had ended",
                )


@rule
def no_process_outlives_its_activation(book: Book) -> Iterator[tuple[str, str]]:
    """When a process of a newer activation starts, or its take is answered, every older one is confirmed dead (D-03)."""
    known = [one for one in book.history.processes if one.activation_id in book.activations]
    by_membership = group(known, lambda one: book.activations[one.activation_id].membership_id)
    for processes in by_membership.values():
        last_use = _last_uses(book, processes)
        for newer in processes:
            activation = book.activations[newer.activation_id]
            begins = newer.started_at if newer.take_at is None else min(newer.started_at, newer.take_at)
            for process, (used, dead_at) in last_use.items():
                if process == newer.process or used.fence >= activation.fence:
                    continue
                if dead_at is None or dead_at > begins:
                    yield broken(
                        activation.id,
                        f"process {process} of activation {used.id} was not dead when activation {activation.id} "
                        f"of the same membership began with process {newer.process}",
                    )


def _last_uses(book: Book, processes: list[ProcessSeen]) -> dict[str, tuple[ActivationFact, float | None]]:
    """The newest activation of each process, and when it was confirmed dead: a session that stayed is judged by that one."""
    found: dict[str, tuple[ActivationFact, float | None]] = {}
    for seen in processes:
        activation = book.activations[seen.activation_id]
        known = found.get(seen.process)
        dead_at = seen.dead_at if known is None or known[1] is None else known[1]
        newest = activation if known is None or activation.fence > known[0].fence else known[0]
        found[seen.process] = (newest, dead_at)
    return found
