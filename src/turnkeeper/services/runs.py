"""Runs as their owner reads them."""

from turnkeeper.kit.ids import is_id
from turnkeeper.services.answers import NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.conversations import NO_CONVERSATION
from turnkeeper.services.views import event_of, run_detail_of, run_of
from turnkeeper.store import conversations, events, run_views, snapshots
from turnkeeper.store.run_views import RunView
from turnkeeper.store.tx import Reader
from turnkeeper.wire.public import Run, RunDetail
from turnkeeper.wire.turn import Event

NO_RUN = NotFound("run")
TOOL_EVENTS_MAX = 400


async def tool_events(s: Services, run_id: str) -> list[Event]:
    """What is stored of the tool calls of a run that the caller may see."""
    rows = await s.db.read("run.tools", lambda r: events.list_tools(r, run_id, limit=TOOL_EVENTS_MAX))
    return [event_of(row) for row in rows]


async def get_run(s: Services, owner: Owner, run_id: str) -> RunDetail | NotFound:
    """One run with its attempts, digest and snapshot."""
    if not is_id(run_id):
        return NO_RUN

    async def look(reader: Reader) -> RunDetail | NotFound:
        view = await run_views.get_view(reader, owner.uid, run_id)
        texts = await run_views.get_texts(reader, run_id)
        if view is None or texts is None:
            return NO_RUN
        attempts = await run_views.list_attempts(reader, run_id)
        return run_detail_of(view, texts, attempts, await snapshots.snapshot_of_run(reader, run_id), owner)

    return await s.db.read("run.get", look)


async def list_runs(
    s: Services, owner: Owner, *, limit: int, thread_id: str | None = None, before: str | None = None
) -> tuple[list[Run], str | None] | NotFound:
    """A page of an owner's runs or of one conversation's, newest first, and where the next one begins."""
    if thread_id is not None and not is_id(thread_id):
        return NO_CONVERSATION

    async def look(reader: Reader) -> list[RunView] | NotFound:
        if thread_id is None:
            return await run_views.list_by_owner(reader, owner.uid, before=before, limit=limit + 1)
        if await conversations.scope_of(reader, owner.uid, thread_id) is None:
            return NO_CONVERSATION
        return await run_views.list_by_thread(reader, thread_id, before=before, limit=limit + 1)

    views = await s.db.read("run.list", look)
    if isinstance(views, NotFound):
        return views
    page = views[:limit]
    return [run_of(view, owner) for view in page], page[-1].id if len(views) > limit else None
