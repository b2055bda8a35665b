"""Conversations, messages, runs and their event streams."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from fastapi import APIRouter, Request
from starlette.responses import Response

from turnkeeper.api.authentication import still_opens
from turnkeeper.api.describe import operation, page_operation, stream_operation
from turnkeeper.api.endpoints import Desk
from turnkeeper.api.idempotency import idempotency_key
from turnkeeper.api.paging import page_request, page_response
from turnkeeper.api.problems import ProblemRaised, shown
from turnkeeper.api.replies import wanted
from turnkeeper.api.settings import ApiSettings
from turnkeeper.api.sse import Streams, event_page, position_of, wants_stream
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.services import conversations, messages, runs, stream
from turnkeeper.services.answers import NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.cancel import cancel
from turnkeeper.services.context import Services
from turnkeeper.services.openings import Opening, open_conversation, open_run
from turnkeeper.services.stream import EventPage
from turnkeeper.services.submit import submit
from turnkeeper.wire.public import Conversation, Message, NewConversation, NewMessage, Run, RunDetail, Submitted
from turnkeeper.wire.turn import Event

ALL = "/v1/conversations"
ONE = ALL + "/{thread_id}"
RUN = "/v1/runs/{run_id}"
_TEXTS = frozenset({"agent", "title"})


def conversation_routes(services: Services, settings: ApiSettings, streams: Streams) -> APIRouter:
    """`/v1/conversations…` and `/v1/runs…`."""
    router = APIRouter()
    desk = Desk(services, settings)
    _conversations(router, desk)
    _messages(router, desk)
    _runs(router, desk)
    _streams(router, desk, streams)
    return router


def _conversations(router: APIRouter, desk: Desk) -> None:
    services = desk.services

    @router.post(ALL, **operation("Start a conversation", Conversation, status=201, body=NewConversation))
    async def create(request: Request) -> Response:
        owner = await desk.owner(request)
        body = await desk.body(request, NewConversation, free_text=_TEXTS)
        if body.workdir is not None and "\0" in body.workdir:
            # Replaced by another character, as in free text, it would quietly be another directory (F14).
            raise ProblemRaised(
                ProblemCode.INVALID_WORKDIR, f"workdir is {shown(body.workdir)}: it holds a NUL", field="workdir"
            )
        key = idempotency_key(request, f"POST {ALL}", body)
        return desk.answer(owner, await conversations.create(services, owner, body, key), status=201)

    @router.get(ALL, **page_operation("Conversations, newest first", Conversation))
    async def list_all(request: Request) -> Response:
        owner = await desk.owner(request)
        page = page_request(request)
        return page_response(*await conversations.list_(services, owner, limit=page.limit, before=page.last))

    @router.get(ONE, **operation("One conversation", Conversation))
    async def get(request: Request, thread_id: str) -> Response:
        owner = await desk.owner(request)
        return desk.answer(owner, await conversations.get(services, owner, thread_id))

    @router.delete(ONE, **operation("Close a conversation for good", Conversation))
    async def close(request: Request, thread_id: str) -> Response:
        owner = await desk.owner(request)
        return desk.answer(owner, await conversations.close(services, owner, thread_id))


def _messages(router: APIRouter, desk: Desk) -> None:
    services = desk.services
    path = ONE + "/messages"

    @router.post(path, **operation("Send a message: a run in the line", Submitted, status=201, body=NewMessage))
    async def send(request: Request, thread_id: str) -> Response:
        owner = await desk.owner(request)
        body = await desk.body(request, NewMessage, limit=desk.prompt_body_bytes_max, free_text={"text"})
        key = idempotency_key(request, f"POST {path}", body)
        return desk.answer(owner, await submit(services, owner, thread_id, body, key), status=201)

    @router.get(path, **page_operation("Messages, oldest first", Message))
    async def list_messages(request: Request, thread_id: str) -> Response:
        owner = await desk.owner(request)
        page = page_request(request)
        found = await messages.list_messages(services, owner, thread_id, limit=page.limit, after=page.last)
        return page_response(*wanted(found))


def _runs(router: APIRouter, desk: Desk) -> None:
    services = desk.services

    @router.get("/v1/runs", **page_operation("Runs, newest first", Run))
    async def list_all(request: Request) -> Response:
        owner = await desk.owner(request)
        page = page_request(request)
        return page_response(*wanted(await runs.list_runs(services, owner, limit=page.limit, before=page.last)))

    @router.get(ONE + "/runs", **page_operation("Runs of a conversation, newest first", Run))
    async def list_of_conversation(request: Request, thread_id: str) -> Response:
        owner = await desk.owner(request)
        page = page_request(request)
        found = await runs.list_runs(services, owner, limit=page.limit, thread_id=thread_id, before=page.last)
        return page_response(*wanted(found))

    @router.get(RUN, **operation("One run with its attempts and its snapshot", RunDetail))
    async def get(request: Request, run_id: str) -> Response:
        owner = await desk.owner(request)
        return desk.answer(owner, await runs.get_run(services, owner, run_id))

    @router.post(RUN + "/cancel", **operation("Ask a run to stop; asking again changes nothing", Run))
    async def cancel_run(request: Request, run_id: str) -> Response:
        owner = await desk.owner(request)
        return desk.answer(owner, await cancel(services, owner, run_id))


class _Page(Protocol):
    """A page of the events of one conversation or run."""

    def __call__(
        self, s: Services, owner: Owner, ident: str, /, *, after: int, limit: int
    ) -> Awaitable[EventPage | NotFound]: ...


def _streams(router: APIRouter, desk: Desk, streams: Streams) -> None:
    services = desk.services

    async def answer(
        request: Request,
        ident: str,
        page: _Page,
        open_: Callable[[Services, Owner, str], Awaitable[Opening | NotFound]],
    ) -> Response:
        owner = await desk.owner(request)
        if not wants_stream(request):
            after, limit = event_page(request)
            events = wanted(await page(services, owner, ident, after=after, limit=limit)).events
            return page_response(events, str(events[-1].seq) if len(events) == limit else None, opaque=False)
        place = position_of(request)
        return streams.open(place, wanted(await open_(services, owner, ident)), partial(still_opens, services, request))

    @router.get(ONE + "/events", **stream_operation("Events of a conversation", Event))
    async def of_conversation(request: Request, thread_id: str) -> Response:
        return await answer(request, thread_id, stream.conversation_events, open_conversation)

    @router.get(RUN + "/events", **stream_operation("Events of a run, up to its end", Event))
    async def of_run(request: Request, run_id: str) -> Response:
        return await answer(request, run_id, stream.run_events, open_run)
