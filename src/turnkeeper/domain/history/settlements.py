"""A settled turn counts once: one native turn, one epoch, at most one snapshot."""

from collections.abc import Iterator, Sequence

from turnkeeper.domain.history.book import Book, group
from turnkeeper.domain.history.facts import ActivationFact
from turnkeeper.domain.history.rules import broken, rule
from turnkeeper.domain.membership import ActivationState


@rule
def settled_turn_moves_the_native_turn_once(book: Book) -> Iterator[tuple[str, str]]:
    """A membership's native turn is the number of its settled activations, each of which took the next number (F-06)."""
    for membership in book.history.memberships:
        settled = _settled(book.activations_of_membership.get(membership.id, []))
        name = f"membership {membership.id} of conversation {membership.thread_id}"
        if membership.native_turn != len(settled):
            yield broken(
                membership.id,
                f"{name} has native turn {membership.native_turn}, and {len(settled)} of its activations are settled",
            )
        before = 0
        for one in settled:
            if one.native_turn != before + 1:
                yield broken(
                    one.id, f"activation {one.id} of {name} settled native turn {one.native_turn} after {before}"
                )
            before = one.native_turn or before + 1  # one jump is one finding


@rule
def settled_turn_moves_the_epoch_once(book: Book) -> Iterator[tuple[str, str]]:
    """A shared workspace's epoch is the number of its settled activations, and no two of them have the same (F-06)."""
    settled = group(
        (one for one in _settled(book.history.activations) if one.membership_id in book.memberships),
        lambda one: book.memberships[one.membership_id].shared_workspace_id,
    )
    for workspace in book.history.workspaces:
        mine = sorted(settled.get(workspace.id, []), key=lambda one: one.epoch or 0)
        name = f"workspace {workspace.id} of scope {workspace.runtime_scope_id}"
        if workspace.epoch != len(mine):
            yield workspace.id, f"{name} has epoch {workspace.epoch}, and {len(mine)} of its activations are settled"
        before = 0
        for one in mine:
            if one.epoch != before + 1:
                yield one.id, f"activation {one.id} of {name} has epoch {one.epoch} after {before}"
            before = one.epoch or before + 1


@rule
def snapshot_belongs_to_a_settlement(book: Book) -> Iterator[tuple[str, str]]:
    """A snapshot is of a settled turn of its run, and each epoch has at most one (F-06)."""
    settled = {
        (book.memberships[one.membership_id].shared_workspace_id, one.epoch, one.run_id)
        for one in _settled(book.history.activations)
        if one.membership_id in book.memberships
    }
    seen: set[tuple[str, int]] = set()
    for snapshot in book.history.snapshots:
        place = (snapshot.shared_workspace_id, snapshot.epoch)
        name = f"snapshot {snapshot.epoch} of workspace {snapshot.shared_workspace_id}, of run {snapshot.run_id},"
        if place in seen:
            yield snapshot.run_id, f"{name} is there twice"
        elif (*place, snapshot.run_id) not in settled:
            yield snapshot.run_id, f"{name} is of an epoch that this run did not settle"
        seen.add(place)


@rule
def settlement_follows_an_admission(book: Book) -> Iterator[tuple[str, str]]:
    """Only an admitted turn is settled, and after its admission (F-05, F-06)."""
    for one in book.history.activations:
        if one.settled_at is None:
            continue
        if one.admitted_at is None or one.admitted_at > one.settled_at:
            yield one.id, f"activation {one.id} of run {one.run_id} was settled without an admission before it"


def _settled(activations: Sequence[ActivationFact]) -> list[ActivationFact]:
    return [one for one in activations if one.state == ActivationState.SETTLED]
