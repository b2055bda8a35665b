"""Runs one ASGI application on one address until the process is told to stop."""

import contextlib
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import uvicorn

from turnkeeper.kit.procs import raise_descriptor_limit
from turnkeeper.main.http_protocol import HttpBounds, bounded_http

# Descriptors that are no client's: the database, logs, sockets; and for the rest each client may need one further on.
DESCRIPTORS_RESERVED = 128


class Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: the process decides when it stops."""

    def install_signal_handlers(self) -> None:
        """Nothing: see the class."""

    def capture_signals(self) -> Any:
        """Nothing: see the class."""
        return contextlib.nullcontext()


def make_server(
    app: Callable[..., Awaitable[None]],
    *,
    shutdown_s: int,
    lifespan: bool = False,
    bounds: HttpBounds | None = None,
) -> Server:
    """A server that gives open requests `shutdown_s` when it is stopped. Access logs are the application's own.

    Call it when everything is composed: what exists by then stays to the end, so that no later garbage collection looks
    at it (a full one stopped a control plane for 40 to 70 ms).
    """
    gc.collect()
    gc.freeze()
    room = max(32, (raise_descriptor_limit() - DESCRIPTORS_RESERVED) // 2)
    bounds = HttpBounds() if bounds is None else bounds
    bounds = replace(bounds, connections_max=min(bounds.connections_max, room))
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=bounded_http(bounds),
        ws="none",
        lifespan="on" if lifespan else "off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=shutdown_s,
    )
    return Server(config)
