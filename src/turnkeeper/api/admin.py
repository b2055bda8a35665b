"""Admin API, `/v1/admin/…`: for administrators' keys alone."""

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from turnkeeper.api.describe import operation, page_operation
from turnkeeper.api.endpoints import Desk
from turnkeeper.api.idempotency import idempotency_key
from turnkeeper.api.paging import page_response
from turnkeeper.api.replies import wanted
from turnkeeper.api.settings import ApiSettings
from turnkeeper.services import host_tokens, hosts, keys, sessions, users
from turnkeeper.services.context import Services
from turnkeeper.wire.public import CreatedHostToken, CreatedKey, HostToken, LoginLink, Me, NewKey, NewUser, Server

_USERS = "/v1/admin/users"
_TOKENS = "/v1/admin/hosts/{name}/tokens"


class _Nothing(BaseModel):
    """The body of a request that needs none, for its idempotency key."""


def admin_routes(services: Services, settings: ApiSettings) -> APIRouter:
    """Servers, host tokens and users."""
    router = APIRouter()
    desk = Desk(services, settings)
    _host_tokens(router, desk)

    @router.get("/v1/admin/servers", **page_operation("Hosts as they were last heard (H-06)", Server))
    async def servers(request: Request) -> Response:
        await desk.admin(request)
        return page_response(await hosts.list_servers(services), None)

    @router.post(_USERS, **operation("Add a user", Me, status=201, body=NewUser))
    async def create_user(request: Request) -> Response:
        owner = await desk.admin(request)
        body = await desk.body(request, NewUser, free_text={"name"})
        key = idempotency_key(request, f"POST {_USERS}", body)
        return desk.answer(owner, await users.create_user(services, owner, body, key), status=201)

    @router.get(_USERS, **page_operation("Users, by name", Me))
    async def list_users(request: Request) -> Response:
        await desk.admin(request)
        return page_response(await users.list_users(services), None)

    @router.post(
        _USERS + "/{uid}/keys", **operation("Create a user's key; shown once", CreatedKey, status=201, body=NewKey)
    )
    async def create_key(request: Request, uid: str) -> Response:
        owner = await desk.admin(request)
        body = await desk.body(request, NewKey, free_text={"name"})
        key = idempotency_key(request, f"POST {_USERS}/{{uid}}/keys", body)
        return desk.answer(owner, await keys.create_key_for(services, uid, body, key), status=201)

    @router.post(
        _USERS + "/{uid}/login-links", **operation("A user's one-time link; shown once", LoginLink, status=201)
    )
    async def login_link(request: Request, uid: str) -> Response:
        owner = await desk.admin(request)
        return desk.answer(owner, await sessions.login_link(services, uid), status=201)

    return router


def _host_tokens(router: APIRouter, desk: Desk) -> None:
    services = desk.services

    @router.post(_TOKENS, **operation("Create a token for a host; shown once", CreatedHostToken, status=201))
    async def create(request: Request, name: str) -> Response:
        owner = await desk.admin(request)
        key = idempotency_key(request, f"POST {_TOKENS}", _Nothing())
        return desk.answer(owner, await host_tokens.create_token(services, owner.uid, name, key), status=201)

    @router.get(_TOKENS, **page_operation("A host's tokens, oldest first, revoked ones included", HostToken))
    async def list_all(request: Request, name: str) -> Response:
        await desk.admin(request)
        return page_response(wanted(await host_tokens.list_tokens(services, name)), None)

    @router.delete(_TOKENS, **page_operation("Revoke all tokens of a host", HostToken))
    async def revoke_all(request: Request, name: str) -> Response:
        owner = await desk.admin(request)
        return page_response(wanted(await host_tokens.revoke_tokens(services, owner.uid, name)), None)

    @router.delete(_TOKENS + "/{token_id}", **operation("Revoke one token of a host", HostToken))
    async def revoke(request: Request, name: str, token_id: str) -> Response:
        owner = await desk.admin(request)
        return desk.answer(owner, await host_tokens.revoke_token(services, owner.uid, name, token_id))
