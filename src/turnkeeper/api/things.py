"""Agents, API keys, and the owner's own settings."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import RootModel
from starlette.responses import Response

from turnkeeper.api.describe import operation, page_operation
from turnkeeper.api.endpoints import Desk
from turnkeeper.api.idempotency import idempotency_key
from turnkeeper.api.paging import page_response
from turnkeeper.api.problems import ProblemRaised
from turnkeeper.api.settings import ApiSettings
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.domain.sandbox import is_agent_name
from turnkeeper.kit.text import clean_json
from turnkeeper.services import agents, keys, sessions, users
from turnkeeper.services.context import Services
from turnkeeper.wire.public import Agent, CreatedKey, Key, LoginLink, Me, MePatch, NewKey

_AGENTS = "/v1/agents"
_AGENT = _AGENTS + "/{name}"
_KEYS = "/v1/keys"


class Definition(RootModel[dict[str, Any]]):
    """An agent definition as JSON; the domain says what it may hold."""


def thing_routes(services: Services, settings: ApiSettings) -> APIRouter:
    """`/v1/agents`, `/v1/keys`, `/v1/me`."""
    router = APIRouter()
    desk = Desk(services, settings)
    _agents(router, desk)
    _keys(router, desk)
    _me(router, desk)
    return router


def _agents(router: APIRouter, desk: Desk) -> None:
    services = desk.services

    @router.get(_AGENTS, **page_operation("Agents, by name, with what is missing on this machine", Agent))
    async def list_all(request: Request) -> Response:
        await desk.owner(request)
        return page_response(await agents.list_agents(services), None)

    @router.get(
        _AGENT, **operation("One agent with its definition; values of its environment for administrators", Agent)
    )
    async def get(request: Request, name: str) -> Response:
        owner = await desk.owner(request)
        found = await agents.get_agent(services, owner, name) if is_agent_name(name) else agents.NO_AGENT
        return desk.answer(owner, found)

    @router.put(_AGENT, **operation("Add or replace a definition (admin)", Agent, body_schema={"type": "object"}))
    async def put(request: Request, name: str) -> Response:
        owner = await desk.admin(request)
        body = await desk.body(request, Definition)
        if clean_json(body.root) != body.root:
            raise ProblemRaised(
                ProblemCode.BAD_REQUEST,
                "the definition holds text that cannot be stored: a NUL, half of a character, or JSON that is too deep",
                field="definition",
            )
        return desk.answer(owner, await agents.put_agent(services, name, body.root))

    @router.delete(_AGENT, **operation("Remove an agent (admin)", Agent))
    async def remove(request: Request, name: str) -> Response:
        owner = await desk.admin(request)
        found = await agents.remove_agent(services, name) if is_agent_name(name) else agents.NO_AGENT
        return desk.answer(owner, found)


def _keys(router: APIRouter, desk: Desk) -> None:
    services = desk.services

    @router.post(_KEYS, **operation("Create a key; only this answer shows it", CreatedKey, status=201, body=NewKey))
    async def create(request: Request) -> Response:
        owner = await desk.owner(request)
        body = await desk.body(request, NewKey, free_text={"name"})
        key = idempotency_key(request, f"POST {_KEYS}", body)
        return desk.answer(owner, await keys.create_key(services, owner.uid, body, key), status=201)

    @router.get(_KEYS, **page_operation("Keys, oldest first, revoked ones included", Key))
    async def list_all(request: Request) -> Response:
        return page_response(await keys.list_keys(services, await desk.owner(request)), None)

    @router.delete(_KEYS + "/{key_id}", **operation("Revoke a key: it opens nothing from now on", Key))
    async def revoke(request: Request, key_id: str) -> Response:
        owner = await desk.owner(request)
        return desk.answer(owner, await keys.revoke_key(services, owner, key_id))


def _me(router: APIRouter, desk: Desk) -> None:
    services = desk.services

    @router.get("/v1/me", **operation("Whose key this is", Me))
    async def get(request: Request) -> Response:
        owner = await desk.owner(request)
        return desk.answer(owner, await users.me(services, owner))

    @router.post(
        "/v1/me/login-links",
        **operation("A one-time link to the page; only this answer shows it", LoginLink, status=201),
    )
    async def login_link(request: Request) -> Response:
        owner = await desk.owner(request)
        return desk.answer(owner, await sessions.login_link(services, owner.uid), status=201)

    @router.patch("/v1/me", **operation("Choose the language of sentences", Me, body=MePatch))
    async def patch(request: Request) -> Response:
        owner = await desk.owner(request)
        body = await desk.body(request, MePatch)
        return desk.answer(owner, await users.set_language(services, owner, body))
