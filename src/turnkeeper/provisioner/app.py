"""The provisioner's HTTP API (routes: `wire.provisioner`). Plain Starlette, as the proxy is on the way of every turn."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from turnkeeper.domain.errors import ProblemCode
from turnkeeper.domain.sandbox import Absent, Exited, Unknown, is_sandbox_id, sandbox_id
from turnkeeper.provisioner import proxy
from turnkeeper.provisioner.backends.base import Instance, Row
from turnkeeper.provisioner.identity import Administrator, Attempt, Caller, Callers, Nobody
from turnkeeper.provisioner.outcomes import Expected, ExpectGeneration, ExpectLease, Refused
from turnkeeper.provisioner.problems import problem
from turnkeeper.provisioner.process import Process, build
from turnkeeper.provisioner.settings import ProvisionerSettings
from turnkeeper.wire.provisioner import (
    CommandAnswer,
    CommandQuestion,
    EnsureRequest,
    SandboxRecord,
    SnapshotRequest,
)
from turnkeeper.wire.tokens import ProvisionerVerb

M = TypeVar("M", bound=BaseModel)

_BODY_BYTES_MAX: Final = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,19}")
_ETAG = re.compile(r'"([0-9a-f-]{36})"')


def create_app(settings: ProvisionerSettings) -> Starlette:
    """The application. `SettingRefused` where it may not start: it says why in one line each. Adoption runs in its lifespan."""
    return app_of(build(settings))


def app_of(process: Process) -> Starlette:
    """The application around what `build` made."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        async with process.running():
            yield

    api = _Api(process)
    return Starlette(
        routes=[
            Route("/v1/sandboxes/{sandbox_id}/{generation}/manager/{path:path}", _Proxy(process)),
            Route("/v1/sandboxes/ensure", api.guarded(api.ensure), methods=["POST"]),
            Route("/v1/sandboxes/{sandbox_id}/{generation}/touch", api.guarded(api.touch), methods=["POST"]),
            Route("/v1/sandboxes/{sandbox_id}/{generation}/snapshot", api.guarded(api.snapshot), methods=["POST"]),
            Route("/v1/sandboxes/{sandbox_id}", api.guarded(api.lookup), methods=["GET"]),
            Route("/v1/sandboxes/{sandbox_id}", api.guarded(api.delete), methods=["DELETE"]),
            Route("/v1/sandboxes", api.guarded(api.inventory), methods=["GET"]),
            Route("/v1/commands/check", api.guarded(api.check_command), methods=["POST"]),
            Route("/livez", _alive, methods=["GET"]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_route, Exception: _failed},
    )


class _RefusedError(Exception):
    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


def _refuse(code: ProblemCode, detail: str, field: str | None = None) -> _RefusedError:
    return _RefusedError(Refused(code, detail, field))


Handler = Callable[[Request, Caller], Awaitable[Response]]


class _Api:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._service = process.service

    def guarded(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Who calls is known before anything of the request is read; refusals become problems."""

        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request, _identified(self._process.callers, request.headers.get("authorization")))
            except _RefusedError as error:
                return problem(error.refused)
            except ClientDisconnect:
                return Response(status_code=400)

        return endpoint

    async def ensure(self, request: Request, caller: Caller) -> Response:
        body = await _body(request, EnsureRequest)
        _allow(caller, "ensure", sandbox_id(body.uid, body.scope))
        if isinstance(caller, Attempt) and (caller.claims.uid, caller.claims.scope, caller.claims.lease_generation) != (
            body.uid,
            body.scope,
            body.lease_generation,
        ):
            raise _refuse(ProblemCode.FORBIDDEN, "the token is for another owner, scope or lease generation")
        return _answer(await self._service.ensure(body))

    async def inventory(self, _request: Request, caller: Caller) -> Response:
        _allow_administrator(caller)
        rows = [_record(row) for row in await self._service.backend.inventory()]
        return Response(f"[{','.join(row.model_dump_json() for row in rows)}]", media_type="application/json")

    async def lookup(self, request: Request, caller: Caller) -> Response:
        name = _name(request)
        _allow(caller, "ensure", name)
        found = await self._service.look(name)
        shape, created_at = (found.shape, found.created_at) if isinstance(found, Instance) else (None, None)
        record = _record(Row(name, found, shape, created_at))
        headers = {} if record.generation is None else {"ETag": f'"{record.generation}"'}
        return Response(record.model_dump_json(), headers=headers, media_type="application/json")

    async def touch(self, request: Request, caller: Caller) -> Response:
        name = _name(request)
        _allow(caller, "touch", name)
        refused = await self._service.touch(name, request.path_params["generation"])
        return Response(status_code=204) if refused is None else problem(refused)

    async def delete(self, request: Request, caller: Caller) -> Response:
        name = _name(request)
        _allow_administrator(caller)
        return _answer(await self._service.delete(name, _expected(request)))

    async def check_command(self, request: Request, caller: Caller) -> Response:
        _allow_administrator(caller)
        body = await _body(request, CommandQuestion)
        missing = await asyncio.to_thread(self._service.backend.missing, body.command, body.programs)
        secrets = await asyncio.to_thread(self._service.without_value, body.secrets)
        return _answer(CommandAnswer(missing=missing, secrets=secrets))

    async def snapshot(self, request: Request, caller: Caller) -> Response:
        name = _name(request)
        _allow(caller, "snapshot", name)
        body = await _body(request, SnapshotRequest)
        live = await self._service.running(name, request.path_params["generation"])
        if isinstance(live, Refused):
            return problem(live)
        return _answer(await self._process.snapshots.take(live, body))


class _Proxy:
    """An ASGI application of its own: nothing of a call is read before it is passed on."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            name, generation = scope["path_params"]["sandbox_id"], scope["path_params"]["generation"]
            authorization = next((value for key, value in scope["headers"] if key == b"authorization"), b"")
            caller = _identified(self._process.callers, authorization.decode("latin-1"))
            if not is_sandbox_id(name):
                raise _refuse(ProblemCode.NOT_FOUND, "there is no such sandbox")
            _allow(caller, "proxy", name)
            target = proxy.target_of(scope["raw_path"])
            if target is None:
                raise _refuse(ProblemCode.BAD_REQUEST, "the manager's path must be made of plain words", "path")
            if proxy.is_control_only(target):
                _allow_administrator(caller)
            live = await self._process.service.running(name, generation)
            if isinstance(live, Refused):
                raise _RefusedError(live)
        except _RefusedError as error:
            await problem(error.refused)(scope, receive, send)
            return
        await proxy.forward(self._process.service, live, target, scope, receive, send)


def _identified(callers: Callers, authorization: str | None) -> Administrator | Attempt:
    caller = callers.identify(authorization)
    if isinstance(caller, Nobody):
        raise _refuse(ProblemCode.UNAUTHORIZED, caller.why)
    return caller


def _allow(caller: Caller, verb: ProvisionerVerb, name: str) -> None:
    """The administrator may; an attempt may with the verb, in its own scope."""
    if isinstance(caller, Attempt):
        if verb not in caller.claims.verbs:
            raise _refuse(ProblemCode.FORBIDDEN, f"the token does not allow {verb!r}")
        if sandbox_id(caller.claims.uid, caller.claims.scope) != name:
            raise _refuse(ProblemCode.FORBIDDEN, "the token is for another scope")


def _allow_administrator(caller: Caller) -> None:
    if not isinstance(caller, Administrator):
        raise _refuse(ProblemCode.FORBIDDEN, "only the control plane may do that")


def _name(request: Request) -> str:
    name: str = request.path_params["sandbox_id"]
    if not is_sandbox_id(name):
        raise _refuse(ProblemCode.NOT_FOUND, f"{name[:80]!a} is no sandbox id", "sandbox_id")
    return name


def _expected(request: Request) -> Expected:
    lease = request.query_params.get("lease_generation")
    generation = request.query_params.get("expected_generation")
    condition = request.headers.get("if-match")
    if [lease, generation, condition].count(None) != 2:
        raise _refuse(
            ProblemCode.PRECONDITION_REQUIRED,
            "say which sandbox is meant by exactly one of If-Match, expected_generation and lease_generation",
        )
    if lease is not None:
        if not _NUMBER.fullmatch(lease):
            raise _refuse(ProblemCode.BAD_REQUEST, f"lease_generation {lease[:80]!a} is no number", "lease_generation")
        return ExpectLease(int(lease))
    if generation is not None:
        return ExpectGeneration(generation)
    found = _ETAG.fullmatch(condition or "")
    if found is None:
        raise _refuse(ProblemCode.BAD_REQUEST, "If-Match must be one generation in double quotes", "If-Match")
    return ExpectGeneration(found[1], precondition=True)


async def _body(request: Request, model: type[M]) -> M:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _BODY_BYTES_MAX:
            raise _refuse(ProblemCode.TOO_LARGE, f"the body has more than {_BODY_BYTES_MAX} bytes")
    try:
        return model.model_validate_json(bytes(data))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        if not field:
            raise _refuse(ProblemCode.INVALID_JSON, f"the body is not a valid {model.__name__}") from None
        raise _refuse(ProblemCode.BAD_REQUEST, f"{field}: {first['msg']}", field) from None


def _answer(result: BaseModel | Refused) -> Response:
    if isinstance(result, Refused):
        return problem(result)
    return Response(result.model_dump_json(), media_type="application/json")


def _record(row: Row) -> SandboxRecord:
    shape = row.shape
    match row.state:
        case Instance(generation=generation):
            state, why = "running", None
        case Exited(generation, cause):
            state, why = "exited", str(cause)
        case Absent():
            state, generation, why = "absent", None, None
        case Unknown(why):
            state, generation = "unknown", None
    return SandboxRecord(
        sandbox_id=row.sandbox_id,
        state=state,
        generation=generation,
        uid=None if shape is None else shape.uid,
        scope=None if shape is None else shape.scope,
        workdir=None if shape is None else shape.workdir,
        why=why,
        created_at=row.created_at,
    )


async def _alive(_request: Request) -> Response:
    return Response("ok\n", media_type="text/plain")


async def _no_route(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = ProblemCode.METHOD_NOT_ALLOWED if status == 405 else ProblemCode.NOT_FOUND
    return problem(Refused(code, "there is no such route"))


async def _failed(_request: Request, _error: Exception) -> Response:
    return problem(Refused(ProblemCode.INTERNAL, "the provisioner's log says more"))
