"""Worker and host API, `/v1/agent/…`: plain routes, because a turn pays for each of them.

    GET  worker/work            POST worker/claim             POST hosts/<host>/heartbeat      (host token)
    POST worker/jobs/<job>/<verb>                             GET  worker/jobs/<job>/signals   (worker token)

Unknown token 401, another job's 403, no such job 404, lease refused 409, gone for good 410. Bodies are what workers write
on behalf of agents, so unstorable text in them is replaced instead of refused (F10).
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnkeeper.api.authentication import host_of_request, worker_of_request
from turnkeeper.api.bodies import EVERYTHING, read_model
from turnkeeper.api.languages import language_of
from turnkeeper.api.metrics import Metrics
from turnkeeper.api.problems import ProblemRaised, shown
from turnkeeper.api.replies import Unwanted, reply
from turnkeeper.api.routing import DirectRoute, PlainRouter
from turnkeeper.api.settings import ApiSettings
from turnkeeper.api.waits import Waits
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.services import events, hosts
from turnkeeper.services.abandon import abandon
from turnkeeper.services.activate import activate
from turnkeeper.services.admit import admit
from turnkeeper.services.auth import Worker
from turnkeeper.services.claim import claim
from turnkeeper.services.container import record_container
from turnkeeper.services.context import Services
from turnkeeper.services.finish import finish
from turnkeeper.services.manifest import record_manifest
from turnkeeper.services.prepare import prepare
from turnkeeper.services.release import release
from turnkeeper.services.renew import heartbeat
from turnkeeper.services.settle import settle
from turnkeeper.services.signals import wait_for_signals
from turnkeeper.services.work import wait_for_work
from turnkeeper.wire import worker as messages
from turnkeeper.wire.host import HostHeartbeat

M = TypeVar("M", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]
UseCase = Callable[[Services, Worker, M], Awaitable[BaseModel | Unwanted | None]]

WORK = "/v1/agent/worker/work"
CLAIM = "/v1/agent/worker/claim"
JOB = "/v1/agent/worker/jobs/{job}/"
HOST = "/v1/agent/hosts/{host}/heartbeat"


def create_worker_api(services: Services, settings: ApiSettings, metrics: Metrics, waits: Waits) -> PlainRouter:
    """The routes of workers and hosts. The most frequent ones come first."""
    limit = settings.worker_body_bytes_max

    def job(verb: str, model: type[M], use_case: UseCase[M]) -> Route:
        async def endpoint(request: Request) -> Response:
            worker = await worker_of_request(services, request)
            body, _ = await read_model(request, model, limit, free_text=EVERYTHING)
            result = await use_case(services, worker, body)
            if isinstance(result, BaseModel):
                return reply(result)
            return reply(result, language=language_of(request.scope))

        return _route("POST", JOB + verb, endpoint)

    return PlainRouter(
        [
            job("events", messages.EventBatch, events.store_batch),
            _route("GET", JOB + "signals", _signals(services, waits)),
            _route("GET", WORK, _work(services, waits)),
            job("heartbeat", messages.Heartbeat, heartbeat),
            _route("POST", CLAIM, _claim(services, limit, metrics)),
            job("prepare", messages.Prepare, prepare),
            job("manifest", messages.Manifest, record_manifest),
            job("container", messages.Container, record_container),
            job("activate", messages.Activate, activate),
            job("admit", messages.Admit, admit),
            job("settle", messages.Settle, settle),
            job("finish", messages.Finish, finish),
            job("abandon", messages.Abandon, abandon),
            job("release", messages.Release, release),
            _route("POST", HOST, _host_heartbeat(services, limit)),
        ]
    )


def _route(method: str, path: str, endpoint: Endpoint) -> Route:
    return DirectRoute(path, endpoint, methods=[method])


def _work(services: Services, waits: Waits) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        host = await host_of_request(services, request)
        wait_s = _wait_s(request)
        return reply(await waits.bounded(wait_for_work(services, host, wait_s=wait_s), messages.Work(maybe=False)))

    return endpoint


def _signals(services: Services, waits: Waits) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        worker = await worker_of_request(services, request)
        wait_s = _wait_s(request)
        return reply(await waits.bounded(wait_for_signals(services, worker, wait_s=wait_s), messages.Signals()))

    return endpoint


def _claim(services: Services, limit: int, metrics: Metrics) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        host = await host_of_request(services, request)
        body, _ = await read_model(request, messages.ClaimRequest, limit, free_text=EVERYTHING)
        answer = await claim(services, host, body)
        if isinstance(answer, messages.ClaimAnswer):
            metrics.claims.labels("claimed" if answer.claim is not None else "nothing").inc()
        else:
            metrics.claims.labels("refused").inc()
        return reply(answer)

    return endpoint


def _host_heartbeat(services: Services, limit: int) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        host = await host_of_request(services, request)
        named: Any = request.path_params["host"]
        if named != host:
            raise ProblemRaised(
                ProblemCode.FORBIDDEN, f"host is {shown(named)}: this token is of host {host}", field="host"
            )
        body, _ = await read_model(request, HostHeartbeat, limit, free_text=EVERYTHING)
        return reply(await hosts.heartbeat(services, host, body))

    return endpoint


def _wait_s(request: Request) -> float:
    asked = request.query_params.get("wait", "0")
    try:
        wait_s = float(asked)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= 3600:
        raise ProblemRaised(
            ProblemCode.BAD_REQUEST, f"wait is {shown(asked)}: seconds from 0 on are expected", field="wait"
        )
    return min(wait_s, messages.WORK_WAIT_S_MAX)
