"""What owners read of a run: its terminal event, its output, its message's delivery, and a stream without gaps."""

from collections.abc import Iterator
from enum import StrEnum

from turnkeeper.domain.attempt import AttemptOutcome
from turnkeeper.domain.dispatch import ConversationState
from turnkeeper.domain.history.book import Book
from turnkeeper.domain.history.facts import RunFact
from turnkeeper.domain.history.rules import broken, rule
from turnkeeper.domain.membership import ActivationState, MembershipState
from turnkeeper.domain.run import LIVE, TERMINAL, DeliveryStatus, RunKind, RunStatus


@rule
def states_are_known(book: Book) -> Iterator[tuple[str, str]]:
    """Every state and outcome is one of its machine's (A-01, A-03)."""
    h = book.history
    words: list[tuple[str, str, str | None, type[StrEnum]]] = [
        *(("run", one.id, one.status, RunStatus) for one in h.runs),
        *(("run", one.id, one.kind, RunKind) for one in h.runs),
        *(("attempt", one.id, one.outcome, AttemptOutcome) for one in h.attempts),
        *(("membership", one.id, one.state, MembershipState) for one in h.memberships),
        *(("activation", one.id, one.state, ActivationState) for one in h.activations),
        *(("conversation", one.thread_id, one.state, ConversationState) for one in h.conversations),
        *(("message", one.id, one.delivery, DeliveryStatus) for one in h.messages),
    ]
    for what, subject, word, machine in words:
        if word is not None and word not in set(machine):
            yield subject, f"{what} {subject} is {word!r}, which is no state of it"


@rule
def run_has_one_end(book: Book) -> Iterator[tuple[str, str]]:
    """A terminal run has one terminal event, unless a cleanup fence on it still holds that back; another run has none (A-03)."""
    for run in book.history.runs:
        ends = sum(span.last_seq - span.first_seq + 1 for span in book.events_of_run.get(run.id, []) if span.is_end)
        if run.status not in TERMINAL:
            if ends:
                yield run.id, f"run {run.id} is {run.status} and has a terminal event"
        elif ends > 1:
            yield run.id, f"run {run.id} has {ends} terminal events"
        elif not ends and not run.runtime_cleanup_pending and not _dropped(book, run):
            yield run.id, f"run {run.id} is {run.status} and has no terminal event"


def _dropped(book: Book, run: RunFact) -> bool:
    """Whether the oldest events of the run's conversation are not stored any more, its end perhaps among them."""
    conversation = book.conversations.get(run.thread_id)
    return conversation is None or conversation.dropped_before > 0


@rule
def end_is_the_last_event(book: Book) -> Iterator[tuple[str, str]]:
    """No event of a run follows its terminal event (A-03)."""
    for run_id, spans in book.events_of_run.items():
        end = next((span for span in spans if span.is_end), None)
        after = [] if end is None else [span for span in spans if not span.is_end and span.last_seq > end.first_seq]
        if end is not None and after:
            yield run_id, f"event {after[-1].last_seq} of run {run_id} follows its terminal event {end.first_seq}"


@rule
def event_numbers_have_no_gap(book: Book) -> Iterator[tuple[str, str]]:
    """A conversation's events are numbered without gaps from 1 (or from where they were dropped) to its counter (A-03)."""
    for conversation in book.history.conversations:
        thread = conversation.thread_id
        expected = max(1, conversation.dropped_before)
        for span in book.events_of_thread.get(thread, []):
            if span.first_seq != expected:
                yield thread, f"conversation {thread} has event {span.first_seq} where {expected} was expected"
            expected = span.last_seq + 1
        if expected != max(conversation.last_seq + 1, conversation.dropped_before, 1):
            yield broken(
                thread,
                f"the events of conversation {thread} end with {expected - 1}, and its counter says "
                f"{conversation.last_seq}",
            )


@rule
def completed_run_has_an_output(book: Book) -> Iterator[tuple[str, str]]:
    """A completed run has an assistant's message of the same conversation (A-04)."""
    for run in book.history.runs:
        if run.status != RunStatus.COMPLETED:
            continue
        messages = book.messages_of_run.get(run.id, [])
        if not any(one.role == "assistant" and one.thread_id == run.thread_id for one in messages):
            yield run.id, f"run {run.id} of conversation {run.thread_id} is completed and has no assistant's message"


@rule
def completed_run_was_settled(book: Book) -> Iterator[tuple[str, str]]:
    """A completed run was settled with that outcome, and nobody had asked it to stop (F-06, R-02)."""
    for run in book.history.runs:
        if run.status != RunStatus.COMPLETED:
            continue
        if run.cancel_requested_at is not None:
            yield run.id, f"run {run.id} is completed although it was asked to stop"
        activations = book.activations_of_run.get(run.id, [])
        if not any(one.state == ActivationState.SETTLED and one.outcome == "completed" for one in activations):
            yield run.id, f"run {run.id} is completed and has no settlement that says so"


@rule
def delivery_follows_the_run(book: Book) -> Iterator[tuple[str, str]]:
    """The delivery status of an owner's message is what its run's state and admission say (A-05)."""
    for message in book.history.messages:
        run = book.runs.get(message.run_id)
        if run is None or message.role != "owner":
            continue
        allowed = _deliveries(book, run)
        if message.delivery not in allowed:
            admitted = "admitted" if book.admitted_of_run(run.id) else "never admitted"
            shown = " or ".join(sorted(allowed))
            yield broken(
                message.id,
                f"message {message.id} is {message.delivery}, and its run {run.id} is {run.status} ({admitted}): "
                f"it must be {shown}",
            )


def _deliveries(book: Book, run: RunFact) -> frozenset[DeliveryStatus]:
    """What `delivery_of` may have said, for every evidence that may have been there and is not recorded."""
    if run.status == RunStatus.PENDING:
        return frozenset({DeliveryStatus.QUEUED})
    if run.status in LIVE:
        return frozenset({DeliveryStatus.DELIVERING, DeliveryStatus.DELIVERED})
    if run.status in (RunStatus.COMPLETED, RunStatus.INTERRUPTED):
        return frozenset({DeliveryStatus.DELIVERED})
    if run.status not in TERMINAL:
        return frozenset(DeliveryStatus)
    admitted = book.admitted_of_run(run.id)
    if not admitted:
        return frozenset({DeliveryStatus.NOT_DELIVERED})
    if any(one.state == ActivationState.SETTLED for one in admitted):
        return frozenset({DeliveryStatus.DELIVERED})
    if any(one.state == ActivationState.NOT_DELIVERED for one in admitted):
        return frozenset({DeliveryStatus.NOT_DELIVERED})
    return frozenset({DeliveryStatus.UNKNOWN, DeliveryStatus.DELIVERED})
