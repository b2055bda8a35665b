"""Reading a conversation's stream: pages of stored events."""

from dataclasses import dataclass

from turnkeeper.kit.ids import is_id
from turnkeeper.services.answers import NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.conversations import NO_CONVERSATION
from turnkeeper.services.runs import NO_RUN
from turnkeeper.services.views import event_of
from turnkeeper.store import conversations, events, run_views
from turnkeeper.store.tx import Reader
from turnkeeper.wire.turn import Event


@dataclass(frozen=True)
class EventPage:
    """Events after the one that was asked for. `last_seq`: the newest number of the conversation when the page was read.

    `dropped_before`: nothing below this number is stored any more. `ended`: the run's terminal event is in this page or
    before it, so nothing will follow (always False for a conversation).
    """

    thread_id: str
    events: list[Event]
    last_seq: int
    dropped_before: int
    ended: bool


async def conversation_events(
    s: Services, owner: Owner, thread_id: str, *, after: int, limit: int
) -> EventPage | NotFound:
    """A page of a conversation's events."""
    if not is_id(thread_id):
        return NO_CONVERSATION

    async def look(reader: Reader) -> EventPage | NotFound:
        if await conversations.scope_of(reader, owner.uid, thread_id) is None:
            return NO_CONVERSATION
        state = await events.stream_state(reader, thread_id)
        rows = await events.list_by_thread(reader, thread_id, after=after, limit=limit)
        return EventPage(thread_id, [event_of(row) for row in rows], state.last_seq, state.dropped_before, ended=False)

    return await s.db.read("events.thread", look)


async def run_events(s: Services, owner: Owner, run_id: str, *, after: int, limit: int) -> EventPage | NotFound:
    """A page of one run's events."""
    if not is_id(run_id):
        return NO_RUN

    async def look(reader: Reader) -> EventPage | NotFound:
        view = await run_views.get_view(reader, owner.uid, run_id)
        if view is None:
            return NO_RUN
        # The end is read first: an event that is appended between the two reads is then in the page or still to come.
        end = await events.end_of_run(reader, run_id)
        state = await events.stream_state(reader, view.thread_id)
        rows = await events.list_by_run(reader, run_id, after=after, limit=limit)
        last = rows[-1].seq if rows else after
        ended = end is not None and last >= end
        return EventPage(view.thread_id, [event_of(row) for row in rows], state.last_seq, state.dropped_before, ended)

    return await s.db.read("events.run", look)


async def thread_page(s: Services, thread_id: str, *, after: int, limit: int) -> list[Event]:
    """A page of events for a feed that serves readers who were checked before."""
    rows = await s.db.read("events.feed", lambda r: events.list_by_thread(r, thread_id, after=after, limit=limit))
    return [event_of(row) for row in rows]
