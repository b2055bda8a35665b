"""Admin API, `/v1/admin/…`: for administrators' keys alone."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from turnkeeper.api.describe import operation, page_operation
from turnkeeper.api.endpoints import Desk
from turnkeeper.api.idempotency import idempotency_key
from turnkeeper.api.paging import page_response
from turnkeeper.api.settings import ApiSettings
from turnkeeper.services import hosts, users
from turnkeeper.services.context import Services
from turnkeeper.wire.public import Me, NewUser, Server

_USERS = "/v1/admin/users"


def admin_routes(services: Services, settings: ApiSettings) -> APIRouter:
    """Servers and users."""
    router = APIRouter()
    desk = Desk(services, settings)

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

    return router
