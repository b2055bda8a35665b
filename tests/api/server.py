"""The control plane's HTTP application on a port of its own, with a real database, in a thread of the test's process.

Tests speak to it over real HTTP. What they must arrange behind it (events of a turn, a second owner) they do with the
product's own use cases, in the server's event loop: `server.call(coroutine)`.
"""

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
from collections.abc import Coroutine, Generator
from dataclasses import replace
from typing import Any, TypeVar

import uvicorn
import uvloop

from turnkeeper.api.app import ControlApp, create_app
from turnkeeper.api.settings import ApiSettings
from turnkeeper.domain.settings import Limits, Timing
from turnkeeper.main.http_protocol import HttpBounds, bounded_http
from turnkeeper.services.context import Services
from turnkeeper.services.signer import Signer, new_private_pem
from turnkeeper.store.pool import open_database
from turnkeeper.store.signals import SignalBus
from turnkeeper.web.app import create_pages
from turnkeeper.web.settings import WebSettings

T = TypeVar("T")
START_S = 20.0
CALL_S = 30.0


class ControlServer:
    """A running server. `url` has no slash at its end."""

    def __init__(
        self,
        dsn: str,
        *,
        timing: Timing,
        limits: Limits,
        settings: ApiSettings,
        listen_to_signals: bool,
        pool_wait_s: float,
    ) -> None:
        self._dsn = dsn
        self._timing = timing
        self._limits = limits
        self._settings = settings
        self._listen = listen_to_signals
        self._pool_wait_s = pool_wait_s
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, name="control server", daemon=True)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.services: Services
        self.app: ControlApp
        self._loop: asyncio.AbstractEventLoop
        self._server: uvicorn.Server

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop, where the pool and the signals live."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def start(self) -> None:
        """Returns when it answers."""
        self._thread.start()
        self._ready.result(START_S)

    def stop(self) -> None:
        """End it, streams included."""

        async def end() -> None:
            await self.app.close_streams()
            self._server.should_exit = True

        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self.call(end())
        self._thread.join(START_S)
        self._socket.close()
        assert not self._thread.is_alive(), "the server did not stop"

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as failure:
            if not self._ready.done():
                self._ready.set_exception(failure)
            else:
                raise

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with open_database(self._dsn, min_size=1, max_size=8, pool_wait_s=self._pool_wait_s) as database:
            bus = SignalBus(self._dsn)
            if self._listen:
                await bus.start()
                assert await bus.wait_listening(10)
            try:
                self.services = Services(
                    db=database, bus=bus, timing=self._timing, limits=self._limits, signer=Signer(new_private_pem())
                )
                pages = create_pages(self.services, WebSettings())
                self.app = create_app(self.services, self._settings, pages=pages)
                config = uvicorn.Config(
                    self.app, loop="none", http=bounded_http(HttpBounds()), log_config=None, access_log=False, lifespan="on",
                    timeout_graceful_shutdown=5,
                )  # fmt: skip
                self._server = uvicorn.Server(config)
                self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
                serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
                while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.005)
                self._ready.set_result(None)
                await serving
            finally:
                await bus.stop()


@contextlib.contextmanager
def control_server(
    dsn: str,
    *,
    timing: Timing | None = None,
    limits: Limits | None = None,
    settings: ApiSettings | None = None,
    heartbeat_s: float | None = None,
    listen_to_signals: bool = True,
    pool_wait_s: float = 10.0,
) -> Generator[ControlServer]:
    """A server on `dsn` within the block."""
    timing = timing or Timing()
    if heartbeat_s is not None:
        timing = replace(timing, stream_heartbeat_s=heartbeat_s)
    server = ControlServer(
        dsn,
        timing=timing,
        limits=limits or Limits(),
        settings=settings or ApiSettings(),
        listen_to_signals=listen_to_signals,
        pool_wait_s=pool_wait_s,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
