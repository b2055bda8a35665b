"""The beginning of an event stream: the state that its events continue from, and where they begin."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnkeeper.kit.ids import is_id
from turnkeeper.services.answers import NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.conversations import NO_CONVERSATION
from turnkeeper.services.runs import NO_RUN
from turnkeeper.services.views import conversation_of, event_of, run_of
from turnkeeper.store import conversations, events, messages, openings, run_views
from turnkeeper.store.run_views import RunView
from turnkeeper.store.tx import Reader
from turnkeeper.wire.public import Run
from turnkeeper.wire.turn import Event, EventKind


@dataclass(frozen=True)
class Opening:
    """`last_seq` is the newest number of the conversation, `dropped` the newest one that is no longer stored (0: all are).

    `first`: a reader without a place of its own gets what follows it. In a conversation's stream that is the event before
    the run that is in hand, so that a page can show all of it; in a run's stream the event before the run's first.
    `state` is the data of the `snapshot` event. `is_cut`: the beginning of the run is among what was dropped. `end`: the
    run's stored end. `lost_end`: the data of an end that was dropped with all the run's events, made again from the run.
    """

    thread_id: str
    last_seq: int
    first: int
    dropped: int
    state: Mapping[str, Any]
    run_id: str | None = None
    is_cut: bool = False
    end: Event | None = None
    lost_end: Mapping[str, Any] | None = None


async def open_conversation(s: Services, owner: Owner, thread_id: str) -> Opening | NotFound:
    """The beginning of a conversation's stream."""
    if not is_id(thread_id):
        return NO_CONVERSATION

    async def look(reader: Reader) -> Opening | NotFound:
        # The numbers are read before the state: what changes in between is told again by an event.
        place = await openings.place_of_thread(reader, owner.uid, thread_id)
        view = await conversations.get_view(reader, owner.uid, thread_id)
        if place is None or view is None:
            return NO_CONVERSATION
        live = None if view.live_run_id is None else await run_views.get_view(reader, owner.uid, view.live_run_id)
        state = {
            "conversation": conversation_of(view, owner.tongue).model_dump(mode="json"),
            "run": None if live is None else run_of(live, owner).model_dump(mode="json"),
        }
        first = place.last_seq if place.first_live is None else place.first_live - 1
        return Opening(thread_id, place.last_seq, first, max(0, place.dropped_before - 1), state)

    return await s.db.read("events.open", look)


async def open_run(s: Services, owner: Owner, run_id: str) -> Opening | NotFound:
    """The beginning of a run's stream."""
    if not is_id(run_id):
        return NO_RUN

    async def look(reader: Reader) -> Opening | NotFound:
        place = await openings.place_of_run(reader, owner.uid, run_id)
        end = await openings.end_of_run(reader, run_id)
        view = await run_views.get_view(reader, owner.uid, run_id)
        if place is None or view is None:
            return NO_RUN
        run = run_of(view, owner)
        dropped = max(0, place.dropped_before - 1)
        # A run's end is its last event: where it was dropped, nothing of the run is left.
        is_lost = view.ended_at is not None and end is None and place.first is None and dropped > 0
        return Opening(
            place.thread_id,
            place.last_seq,
            0 if place.first is None else place.first - 1,
            dropped,
            {"run": run.model_dump(mode="json")},
            run_id,
            dropped > 0 and place.first_kind != EventKind.MESSAGE,  # which is what every run begins with
            None if end is None else event_of(end),
            await _lost_end(reader, view, run) if is_lost else None,
        )

    return await s.db.read("events.open", look)


async def _lost_end(reader: Reader, view: RunView, run: Run) -> Mapping[str, Any]:
    output = await messages.message_of_run(reader, view.id, "assistant")
    return {
        "status": run.status,
        "error_code": run.error_code,
        "text": run.error_text,
        "final_message_id": None if output is None else output.id,
        "run_id": run.id,
        "created_at": None if run.ended_at is None else run.ended_at.isoformat(),
    }


async def run_page(s: Services, run_id: str, *, after: int, limit: int) -> list[Event]:
    """A page of one run's events, for a reader that was checked at the opening."""
    rows = await s.db.read("events.run_page", lambda r: events.list_by_run(r, run_id, after=after, limit=limit))
    return [event_of(row) for row in rows]
