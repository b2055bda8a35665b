"""The control plane's HTTP application: one ASGI callable that sends each request to its part.

Worker and host routes come first and are plain Starlette routes without middleware, because a turn pays for each of their
calls. The owner and admin APIs are FastAPI, for their description. The pages come as an application of their own from the
composition root, so that `api` and `web` do not know each other:

    create_app(services, ApiSettings(), pages=create_pages(services, WebSettings()))
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.feeds import Feeds
from turnkeeper.api.guard import RequestGuard
from turnkeeper.api.metrics import Metrics
from turnkeeper.api.operations import create_operations
from turnkeeper.api.owner import create_owner_api
from turnkeeper.api.settings import ApiSettings
from turnkeeper.api.sse import Streams
from turnkeeper.api.waits import Waits
from turnkeeper.api.worker import create_worker_api
from turnkeeper.services import events
from turnkeeper.services.context import Services

WORKER_PREFIX = "/v1/agent/"
OPERATION_PATHS = frozenset({"/livez", "/readyz", "/metrics"})


class ControlApp:
    """See the module. Call `close_streams` before the server is asked to stop."""

    def __init__(
        self,
        worker: ASGIApp,
        owner: ASGIApp,
        operations: ASGIApp,
        pages: ASGIApp | None,
        waits: Waits,
        feeds: Feeds,
    ) -> None:
        self._waits = waits
        self._feeds = feeds
        self._worker = worker
        self._owner = owner
        self._operations = operations
        self._pages = pages if pages is not None else owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            await self._part(scope["path"])(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def close_streams(self) -> None:
        """End every event stream and every request that waits on purpose, so that a stopping server need not wait for
        them. Their clients come back."""
        self._waits.close()
        await self._feeds.close()

    def _part(self, path: str) -> ASGIApp:
        if path.startswith(WORKER_PREFIX):
            return self._worker
        if path.startswith("/v1/") or path == "/openapi.json":
            return self._owner
        if path in OPERATION_PATHS:
            return self._operations
        return self._pages

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message: Message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close_streams()
                await send({"type": "lifespan.shutdown.complete"})
                return


def create_app(services: Services, settings: ApiSettings | None = None, *, pages: ASGIApp | None = None) -> ControlApp:
    """The application of one control-plane process. `pages`: `turnkeeper.web.app.create_pages`."""
    settings = settings or ApiSettings()
    metrics = Metrics()
    waits = Waits()
    feeds = Feeds(lambda thread_id: events.subscribe(services, thread_id), metrics, settings.stream_readers_max)
    streams = Streams(services, settings, feeds, metrics)
    guard = RequestGuard(metrics, settings.allowed_hosts)
    return ControlApp(
        guard.around(create_worker_api(services, settings, metrics, waits), check_host=False),
        guard.around(create_owner_api(services, settings, metrics, streams), check_host=True),
        guard.around(create_operations(services, metrics), check_host=False),
        guard.around(pages, check_host=True) if pages is not None else None,
        waits,
        feeds,
    )
