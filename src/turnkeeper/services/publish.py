"""The one path by which events get into a conversation's stream.

Whatever happens in a transaction is collected and stored at its very end, under the counters' row locks, which are the
last rank: so numbers are given out in the order of the commits, and nobody waits for anything while holding a counter.
"""

from dataclasses import replace
from typing import Any

from turnkeeper.domain.errors import ErrorCode, Language, sentence
from turnkeeper.services.cutting import fit
from turnkeeper.store import events
from turnkeeper.store.events import NewEvent
from turnkeeper.store.locks import lock_event_counter
from turnkeeper.store.signals import events_signal
from turnkeeper.store.tx import Tx
from turnkeeper.wire.turn import EventKind


class Outbox:
    """The events of one transaction, by conversation. What is larger than `event_bytes_max` is cut and marked."""

    def __init__(self, event_bytes_max: int) -> None:
        self._event_bytes_max = event_bytes_max
        self._events: dict[str, list[NewEvent]] = {}

    def add(self, thread_id: str, event: NewEvent) -> None:
        """An event, after those that were added before it."""
        data, original_bytes, _ = fit(event.data, self._event_bytes_max)
        self.add_fitted(thread_id, replace(event, data=data, original_bytes=event.original_bytes or original_bytes))

    def add_fitted(self, thread_id: str, event: NewEvent) -> None:
        """An event that went through `cutting.fit` already."""
        self._events.setdefault(thread_id, []).append(event)

    def message(self, thread_id: str, run_id: str, *, message_id: str, role: str, text: str) -> None:
        """A message appeared."""
        self.add(thread_id, NewEvent(run_id, EventKind.MESSAGE, {"message_id": message_id, "role": role, "text": text}))

    def run(self, thread_id: str, run_id: str, status: str, **more: Any) -> None:
        """The run moved."""
        self.add(thread_id, NewEvent(run_id, EventKind.RUN, {"status": status, **more}))

    async def flush(self, tx: Tx) -> None:
        """Store everything, conversation by conversation in the order of their ids. The transaction's last step."""
        for thread_id in sorted(self._events):
            last = await lock_event_counter(tx, thread_id)
            last = await events.append(tx, thread_id, last, self._events[thread_id])
            tx.notify(events_signal(thread_id, last))
        self._events = {}


def end_event(
    run_id: str, *, status: str, error_code: str | None, language: Language, final_message_id: str | None
) -> NewEvent:
    """The terminal event of a run, the last of its stream (A-03)."""
    return NewEvent(
        run_id,
        EventKind.END,
        {
            "status": status,
            "error_code": error_code,
            "text": None if error_code is None else sentence(ErrorCode(error_code), language),
            "final_message_id": final_message_id,
        },
    )
