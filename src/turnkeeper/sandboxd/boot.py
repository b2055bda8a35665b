"""Start: become safe, answer at once, load the rest behind the first answers.

The first request is the launcher's question whether anybody is there. `GET /v1/state` and `/v1/mark` are answered before
the messages, the token library and the log are imported (0.3 s); every other request waits for that.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from turnkeeper import __version__
from turnkeeper.kit import failpoint, ids, procs
from turnkeeper.kit.clock import system_clock
from turnkeeper.sandboxd.http import HttpAnswer, HttpRequest, HttpServer
from turnkeeper.wire.sandbox_start import SandboxStart, SandboxStartError

EXIT_USAGE: Final = 2
EXIT_BROKEN: Final = 70
_CONFIG_BYTES_MAX: Final = 1024 * 1024
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_Handle = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class StartRefusedError(Exception):
    """The start is refused; the text is one line for whoever started it."""


def run(listen_fd: int, config_fd: int) -> int:
    """Serve until something ends this process; returns only where the start is refused."""
    plan = failpoint.plan()
    harden({listen_fd, config_fd} if plan is None else {listen_fd, config_fd, plan.fd})
    try:
        start = read_config(config_fd)
        sock = adopt_listener(listen_fd)
    except StartRefusedError as error:
        sys.stderr.write(f"sandboxd: {error}\n")
        return EXIT_USAGE
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Boot(start).serve(sock))
    return EXIT_BROKEN


def read_config(fd: int) -> SandboxStart:
    """The start-up message; the descriptor is read to its end and closed before anything else happens."""
    parts: list[bytes] = []
    size = 0
    try:
        while (data := os.read(fd, 65536)) and size <= _CONFIG_BYTES_MAX:
            parts.append(data)
            size += len(data)
        os.close(fd)
        return SandboxStart.from_json(b"".join(parts))
    except OSError as error:
        raise StartRefusedError(f"--config-fd {fd} cannot be read: {error.strerror}") from None
    except SandboxStartError as error:
        raise StartRefusedError(str(error)) from None


def adopt_listener(fd: int) -> socket.socket:
    """The inherited listening socket, which no child inherits."""
    try:
        sock = socket.socket(fileno=fd)
        os.set_inheritable(fd, False)
        listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StartRefusedError(f"--listen-fd {fd} is no socket: {error.strerror}") from None
    if not listening:
        raise StartRefusedError(f"--listen-fd {fd} is not a listening socket")
    return sock


def harden(needed: set[int]) -> None:
    """What an agent of the same uid must not be able to do to this process, and what the process does for its memory.

    Signals from inside reach pid 1 only where it has a handler, so it has none: Python's own for SIGINT is removed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    procs.set_non_dumpable()
    if os.getpid() != 1:
        procs.set_child_subreaper()
    close_inherited(needed)
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_ARENA_MAX, 2)
    mallopt(_M_MMAP_THRESHOLD, 256 * 1024)  # large frames go back to the system as soon as they are done with


def close_inherited(needed: set[int]) -> None:
    """Keep what is needed and stderr, for the log. Stdin is nobody's; stdout would mix into somebody's data."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        if int(name) > 2 and int(name) not in needed:
            with contextlib.suppress(OSError):  # the descriptor of this very listing
                os.close(int(name))
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)


class Boot:
    """Answers by itself until the routes are loaded."""

    def __init__(self, start: SandboxStart) -> None:
        self._start = start
        self._boot_id = ids.new_id()
        self._handle: _Handle | None = None
        self._loaded = asyncio.Event()

    async def serve(self, sock: socket.socket) -> None:
        """Listen, load, and go on for ever."""
        # JSON may write each byte of a prompt as six, and more than a prompt is never sent.
        server = HttpServer(self._respond, 8 * self._start.limits.prompt_bytes_max)
        await server.start(sock)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._load, args=(loop,), name="load", daemon=True).start()
        await asyncio.Event().wait()

    async def _respond(self, request: HttpRequest) -> HttpAnswer:
        if self._handle is None:
            if (early := self._early(request)) is not None:
                return early
            await self._loaded.wait()
        if self._handle is None:
            raise RuntimeError("loading ends with routes, or with this process")
        return await self._handle(request)

    def _early(self, request: HttpRequest) -> HttpAnswer | None:
        """What `Routes` answers to the same questions while there is no membership yet."""
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not ids.constant_time_equal(given.strip(), self._start.secret):
            return None  # refused by the routes, in their words
        mark = {"mark_ms": system_clock.boottime_ms(), "boot_id": self._boot_id}
        if (request.method, request.path) == ("GET", "/v1/mark"):
            return HttpAnswer(200, json.dumps(mark).encode())
        if (request.method, request.path) == ("GET", "/v1/state"):
            state = {"generation": self._start.generation, "version": __version__, "import_ready": False}
            return HttpAnswer(200, json.dumps({**mark, **state, "memberships": []}).encode())
        return None

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        """Import the rest, in a thread: the loop goes on answering."""
        try:
            from turnkeeper.sandboxd import wiring

            loop.call_soon_threadsafe(self._wire, wiring.prepare(self._start))
        except Exception as failure:  # without the rest this process is of no use to anybody
            sys.stderr.write(f"sandboxd: cannot start: {type(failure).__name__}: {failure}\n")
            sys.stderr.flush()
            os._exit(EXIT_BROKEN)

    def _wire(self, build: Callable[[SandboxStart, str], _Handle]) -> None:
        self._handle = build(self._start, self._boot_id)
        self._loaded.set()
