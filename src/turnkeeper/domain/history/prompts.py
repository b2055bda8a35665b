"""A prompt reaches the agent at most once, and what is not proven is not continued.

At-most-once is judged by what the agent itself received, where somebody wrote that down; the database's own record of
admissions is the weaker witness.
"""

from collections import Counter
from collections.abc import Iterator

from turnkeeper.domain.history.book import Book, group
from turnkeeper.domain.history.facts import RunFact
from turnkeeper.domain.history.rules import broken, rule
from turnkeeper.domain.membership import ActivationState, MembershipState
from turnkeeper.domain.run import DeliveryStatus, RunStatus

_UNPROVEN = "outcome_unknown"
"""The reason of a loss that only an admitted prompt can have. The others (no session, a force, a time-out) need none."""


def _received(book: Book) -> Iterator[tuple[str, list[RunFact], int]]:
    """What the agents received: how it is named, the runs that it may be (more than one where texts are the same), how often."""
    entries = book.history.ledger or ()
    by_run = Counter(entry.run_id for entry in entries if entry.run_id is not None)
    for run_id, times in by_run.items():
        run = book.runs.get(run_id)
        yield f"the prompt of run {run_id}", [] if run is None else [run], times
    by_text = Counter(entry.text for entry in entries if entry.run_id is None)
    runs = group(book.history.runs, lambda one: one.prompt)
    for text, times in by_text.items():
        yield f"the prompt {_short(text)}", runs.get(text, []), times


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 60 else flat[:59] + "…")


def _ids(runs: list[RunFact]) -> str:
    return ", ".join(sorted(run.id for run in runs))


@rule
def prompt_reaches_the_agent_once(book: Book) -> Iterator[tuple[str, str]]:
    """No agent receives a run's prompt twice, judged by the agents' own ledger (F-05, R-03)."""
    for name, runs, times in _received(book):
        if runs and times > len(runs):
            allowed = f"of {_ids(runs)}" if len(runs) > 1 else f"of run {_ids(runs)}"
            yield runs[0].id, f"{name} {allowed} was received {times} times; at most {len(runs)}"


@rule
def only_admitted_prompts_reach_the_agent(book: Book) -> Iterator[tuple[str, str]]:
    """What an agent received belongs to a run that was admitted before (F-05)."""
    for name, runs, times in _received(book):
        admitted = sum(bool(book.admitted_of_run(run.id)) for run in runs)
        if not runs:
            yield name, f"{name} was received by an agent and belongs to no run"
        elif min(times, len(runs)) > admitted:
            yield runs[0].id, f"{name} was received by an agent; of its runs {_ids(runs)} {admitted} were admitted"


@rule
def undelivered_prompt_was_not_received(book: Book) -> Iterator[tuple[str, str]]:
    """An owner who is told that a message was not delivered is told the truth: no agent received it (A-05)."""
    for name, runs, _ in _received(book):
        told = [
            run
            for run in runs
            if book.admitted_of_run(run.id)
            and any(one.delivery == DeliveryStatus.NOT_DELIVERED for one in book.messages_of_run.get(run.id, []))
        ]
        if runs and len(told) == len(runs):
            yield told[0].id, f"{name} was received by an agent, and the owner of run {_ids(told)} reads not_delivered"


@rule
def run_is_admitted_once(book: Book) -> Iterator[tuple[str, str]]:
    """A run is admitted at most once, whatever becomes of it (R-03, R-05)."""
    for run_id in book.activations_of_run:
        admitted = book.admitted_of_run(run_id)
        if len(admitted) > 1:
            names = ", ".join(one.id for one in admitted)
            yield run_id, f"run {run_id} was admitted {len(admitted)} times, in activations {names}"


@rule
def admitted_turn_ends_by_settlement_or_verdict(book: Book) -> Iterator[tuple[str, str]]:
    """What was admitted is settled, or quarantined until a verdict; nothing that is live outlives its attempt (R-02, R-04)."""
    for one in book.history.activations:
        if one.admitted_at is not None and one.state in (ActivationState.PREPARING, ActivationState.ABANDONED):
            yield one.id, f"activation {one.id} of run {one.run_id} was admitted and is {one.state}"
        attempt = book.attempts.get(one.attempt_id)
        held = one.state in (ActivationState.PREPARING, ActivationState.ADMITTED)
        if held and attempt is not None and attempt.ended_at is not None:
            yield broken(
                one.id,
                f"activation {one.id} of run {one.run_id} is {one.state}, and its attempt {attempt.id} has ended",
            )


@rule
def unadmitted_conversation_stays_usable(book: Book) -> Iterator[tuple[str, str]]:
    """A conversation is lost for an unknown outcome only where a prompt was admitted (R-01, R-02)."""
    for membership in book.history.memberships:
        if membership.state != MembershipState.LOST or membership.lost_reason != _UNPROVEN:
            continue
        lost = [
            one
            for one in book.activations_of_membership.get(membership.id, [])
            if one.state == ActivationState.LOST and one.admitted_at is not None
        ]
        if not lost:
            yield broken(
                membership.thread_id,
                f"conversation {membership.thread_id} is lost ({_UNPROVEN}), and no prompt of it was admitted and lost",
            )


@rule
def lost_is_final(book: Book) -> Iterator[tuple[str, str]]:
    """LOST never leaves: nothing of a lost conversation waits, begins or goes on after the loss (R-05)."""
    for conversation in book.history.conversations:
        thread = conversation.thread_id
        membership = book.membership_of_thread.get(thread)
        activations = [] if membership is None else book.activations_of_membership.get(membership.id, [])
        lost = next((one for one in activations if one.state == ActivationState.LOST), None)
        is_lost = membership is not None and membership.state == MembershipState.LOST
        if lost is not None and membership is not None and not is_lost:
            yield thread, f"membership {membership.id} is {membership.state}, and its activation {lost.id} is lost"
        if is_lost and conversation.state == "open":
            yield thread, f"conversation {thread} is open, and its membership is lost"
        if conversation.state == "lost" and not is_lost:
            yield thread, f"conversation {thread} is lost, and its membership is not"
        if is_lost:
            for run in book.runs_of_thread.get(thread, []):
                if run.status == RunStatus.PENDING:
                    yield run.id, f"run {run.id} waits in the lost conversation {thread}"
        if lost is not None:
            yield from _after_the_loss(book, thread, lost.id)


def _after_the_loss(book: Book, thread: str, lost_id: str) -> Iterator[tuple[str, str]]:
    lost = book.activations[lost_id]
    for one in book.activations_of_membership[lost.membership_id]:
        if one.fence > lost.fence:
            yield one.id, f"activation {one.id} began in conversation {thread}, which activation {lost.id} had lost"
    if lost.ended_at is None:
        return
    for run in book.runs_of_thread.get(thread, []):
        if run.created_at > lost.ended_at:
            yield run.id, f"run {run.id} was created in conversation {thread} after its loss in activation {lost.id}"
    for attempt in book.attempts_of_thread.get(thread, []):
        if attempt.claimed_at > lost.ended_at:
            yield broken(
                attempt.id,
                f"attempt {attempt.id} was claimed in conversation {thread} after its loss in activation {lost.id}",
            )
