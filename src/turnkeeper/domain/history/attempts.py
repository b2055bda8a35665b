"""The record of the attempts: numbered, each with its lease, closed for good, followed by another one only after a release."""

from collections.abc import Iterator
from itertools import pairwise

from turnkeeper.domain.attempt import AttemptOutcome
from turnkeeper.domain.history.book import Book
from turnkeeper.domain.history.rules import broken, rule
from turnkeeper.domain.run import LEASED


@rule
def attempts_are_numbered(book: Book) -> Iterator[tuple[str, str]]:
    """A run's attempts are numbered without gaps, and lease generations grow with every claim (A-01)."""
    for run_id, attempts in book.attempts_of_run.items():
        numbers = [one.attempt_no for one in attempts]
        if numbers != list(range(1, len(numbers) + 1)):
            shown = ", ".join(map(str, numbers))
            yield run_id, f"the attempts of run {run_id} have the numbers {shown}; they count from 1 without gaps"
        for earlier, later in pairwise(attempts):
            if later.lease_generation <= earlier.lease_generation:
                yield broken(
                    later.id,
                    f"attempt {later.id} of run {run_id} has lease generation {later.lease_generation}, and attempt "
                    f"{earlier.id} before it {earlier.lease_generation}",
                )
    for thread, attempts in book.attempts_of_thread.items():
        for earlier, later in pairwise(attempts):
            if earlier.claimed_at > later.claimed_at or earlier.lease_generation == later.lease_generation:
                yield broken(
                    later.id,
                    f"attempt {later.id} (generation {later.lease_generation}) of conversation {thread} was not claimed "
                    f"after attempt {earlier.id} (generation {earlier.lease_generation})",
                )


@rule
def attempt_record_is_whole(book: Book) -> Iterator[tuple[str, str]]:
    """A closed attempt has an outcome and an end; a live one has neither, and a lease that ends (E-04, L-11)."""
    for one in book.history.attempts:
        name = f"attempt {one.id} of run {one.run_id}"
        if (one.ended_at is None) != (one.outcome is None):
            missing = "an end" if one.ended_at is None else "an outcome"
            yield one.id, f"{name} is closed without {missing}"
        if one.lease_expires_at is None:
            yield one.id, f"{name} has no lease end"
        if one.outcome == AttemptOutcome.RELEASED and one.accepted_at is not None:
            yield one.id, f"{name} was released, and a worker had accepted it"


@rule
def open_attempt_belongs_to_a_leased_run(book: Book) -> Iterator[tuple[str, str]]:
    """Only the newest attempt of a run is open, and only while the run is running or asked to stop (A-01, A-03)."""
    for run_id, attempts in book.attempts_of_run.items():
        run = book.runs.get(run_id)
        for one in attempts:
            if one.ended_at is not None or one.outcome is not None:
                continue
            if one is not attempts[-1]:
                yield one.id, f"attempt {one.id} of run {run_id} is open, and attempt {attempts[-1].id} followed it"
            elif run is not None and run.status not in LEASED:
                yield one.id, f"attempt {one.id} is open, and its run {run_id} is {run.status}"


@rule
def only_a_release_puts_a_run_back(book: Book) -> Iterator[tuple[str, str]]:
    """A run is claimed again only after an attempt that its child provably never took (H-02, H-04, R-05)."""
    for run_id, attempts in book.attempts_of_run.items():
        for earlier, later in pairwise(attempts):
            if earlier.outcome not in (None, AttemptOutcome.RELEASED):
                yield broken(
                    later.id,
                    f"attempt {later.id} claimed run {run_id} again after attempt {earlier.id}, which ended "
                    f"{earlier.outcome}",
                )
