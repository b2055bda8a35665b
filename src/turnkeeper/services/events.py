"""`POST jobs/<job>/events`, and the signal that tells readers of them.

A batch names the number of its first event. What is stored already is skipped, a gap is refused, and whatever the batch
adds is numbered in the conversation under the counter's row lock. The attempt's row lock orders the batches of one
worker, and is what an end of the run takes too: nothing is appended after a terminal event (A-03).

A worker does not know the owner's language: the sentence of an error is put in here (R-06).
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

from turnkeeper.domain.errors import ErrorCode, Language, ProblemCode, sentence
from turnkeeper.services.answers import Invalid, Refused
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.cutting import fit
from turnkeeper.services.leased import LEASE_REFUSED, held, run_leased
from turnkeeper.services.publish import Outbox
from turnkeeper.store import attempts, runs, users
from turnkeeper.store.attempts import AttemptRow
from turnkeeper.store.events import NewEvent
from turnkeeper.store.guards import Lease, is_held
from turnkeeper.store.locks import lock_attempt
from turnkeeper.store.signals import Subscription, events_topic
from turnkeeper.store.tx import Tx
from turnkeeper.wire.turn import EventKind
from turnkeeper.wire.worker import EventBatch, EventBatchAnswer, TurnEvent

OWN_KINDS: Final = frozenset(
    {
        EventKind.MESSAGE,
        EventKind.RUN,
        EventKind.CHANGES,
        EventKind.END,
        EventKind.CONVERSATION,
        EventKind.SNAPSHOT,
        EventKind.GAP,
    }
)
"""Kinds that the control plane alone writes: a worker cannot say that a run has ended (A-03)."""
STOPPED: Final = "events_stopped"
_STOPPED_TEXTS: Final = {
    Language.EN: "This turn reached its limit of {} bytes of events; later ones are not stored.",
    Language.ZH: "本轮的事件已达到 {} 字节的上限，之后的事件不再保存。",
}


@dataclass(frozen=True)
class _Prepared:
    """An event as it will be stored: made before the transaction, which holds locks."""

    event: NewEvent
    size_bytes: int


def subscribe(s: Services, thread_id: str) -> AbstractContextManager[Subscription]:
    """Woken when a conversation may have new events. A hint: the reader looks, and waits with a bound (F04)."""
    return s.bus.subscribe(events_topic(thread_id))


async def store_batch(s: Services, worker: Worker, request: EventBatch) -> EventBatchAnswer | Refused | Invalid:
    """The number that is expected next. `Invalid` for a gap, for a batch that is not consecutive, and for foreign kinds."""
    fault = _fault(request)
    if fault is not None:
        return fault
    limit = s.limits.event_bytes_max
    prepared = [_prepare(worker, event, limit) for event in request.events]

    async def work(tx: Tx) -> EventBatchAnswer | Refused | Invalid:
        attempt = await lock_attempt(tx, worker.attempt_id, AttemptRow)
        lease = Lease(worker.attempt_id, worker.run_id, request.lease_generation)
        if attempt is None or not _is_of(attempt, lease):
            return LEASE_REFUSED
        after = attempt.stream_no_last
        new = [one for one in prepared if (one.event.stream_no or 0) > after]
        is_gap = request.first > after + 1
        if (is_gap or not new) and not await is_held(tx, lease):
            return LEASE_REFUSED  # nothing will be written that names the lease
        if is_gap:
            return Invalid(
                ProblemCode.BAD_REQUEST,
                "first",
                f"first is {request.first}; the next event is number {after + 1}",
                {"next": after + 1},
            )
        if new:
            await _store(tx, s, attempt, lease, new)
        return EventBatchAnswer(next=after + 1 + len(new))

    return await run_leased(s, "events", work)


def _is_of(attempt: AttemptRow, lease: Lease) -> bool:
    return (attempt.run_id, attempt.lease_generation, attempt.ended_at) == (lease.run_id, lease.generation, None)


def _fault(request: EventBatch) -> Invalid | None:
    for place, event in enumerate(request.events):
        if event.n != request.first + place:
            return Invalid(
                ProblemCode.BAD_REQUEST, "events", f"event {place} has number {event.n}; they follow `first`"
            )
        if event.kind in OWN_KINDS:
            return Invalid(ProblemCode.BAD_REQUEST, "events", f"{event.kind.value} is an event of the control plane")
    return None


def _prepare(worker: Worker, event: TurnEvent, limit: int) -> _Prepared:
    data, original, size = fit(event.data, limit)
    stored = NewEvent(
        run_id=worker.run_id,
        kind=event.kind.value,
        data=data,
        attempt_id=worker.attempt_id,
        stream_no=event.n,
        original_bytes=event.original_bytes or original,
    )
    return _Prepared(stored, size)


async def _store(tx: Tx, s: Services, attempt: AttemptRow, lease: Lease, new: list[_Prepared]) -> None:
    """Store what still fits into the turn's limit; where it ends, one mark says so, and the rest is only counted."""
    room = s.limits.turn_events_bytes_max - attempt.stream_bytes
    if any(one.event.kind == EventKind.ERROR for one in new) or sum(one.size_bytes for one in new) > room:
        language = Language(await users.language_of_run(tx, attempt.run_id))
        new = [_in_words(one, language, s.limits.event_bytes_max) for one in new]
    else:
        language = Language.EN  # nothing will be said in it
    kept: list[NewEvent] = []
    used = 0
    stopped = room <= 0
    for one in new:
        if stopped:
            break
        if used + one.size_bytes > room:
            kept.append(_mark(s, one.event, language))
            used = room  # nothing more fits: the mark is stored once
            stopped = True
        else:
            kept.append(one.event)
            used += one.size_bytes
    upto = attempt.stream_no_last + len(new)
    await held(
        tx,
        lease,
        await attempts.take_stream_numbers(tx, lease, after=attempt.stream_no_last, upto=upto, stored_bytes=used),
        "event batch",
    )
    if not kept:
        return
    run = await runs.get_run(tx, attempt.run_id)
    if run is None:
        return
    outbox = Outbox(s.limits.event_bytes_max)
    for event in kept:
        outbox.add_fitted(run.thread_id, event)
    await outbox.flush(tx)


def _in_words(one: _Prepared, language: Language, limit: int) -> _Prepared:
    """An error that is told to its owner in `language`; anything else, and a code that nobody knows, stays as it is."""
    code = one.event.data.get("code")
    if one.event.kind != EventKind.ERROR or not isinstance(code, str) or code not in set(ErrorCode):
        return one
    data, original, size = fit({**one.event.data, "text": sentence(ErrorCode(code), language)}, limit)
    return _Prepared(replace(one.event, data=data, original_bytes=one.event.original_bytes or original), size)


def _mark(s: Services, event: NewEvent, language: Language) -> NewEvent:
    text = _STOPPED_TEXTS[language].format(s.limits.turn_events_bytes_max)
    return NewEvent(
        run_id=event.run_id,
        kind=EventKind.NOTICE.value,
        data={"code": STOPPED, "text": text},
        attempt_id=event.attempt_id,
        stream_no=event.stream_no,
    )
