"""The walk of a Workdir as a stream (D-08): a walker below a keeper, relayed with backpressure, ended by any stop or take."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from turnkeeper.kit.stop import Deadline
from turnkeeper.sandboxd.processes import Keeper, Reaper, StartError, Stdio
from turnkeeper.wire.sandbox_start import SandboxLimits

WALKER_PROGRAM: Final = str(Path(__file__).with_name("walker.py"))
_READ_BYTES: Final = 256 * 1024
_KILL_S: Final = 5.0
_GRACE_S: Final = 2.0


class Snapshots:
    """Starts walks and ends them."""

    def __init__(self, reaper: Reaper, workspace: str, limits: SandboxLimits) -> None:
        self._reaper = reaper
        self._workspace = workspace
        self._limits = limits
        self._walks: set[Keeper] = set()

    async def walk(self, workdir: str) -> AsyncIterator[bytes]:
        """The frames of `wire.walk`. A walk that was ended from outside has no `end` frame and is no snapshot."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)
        try:
            keeper = await self._start(workdir, write_fd)
        except StartError:
            os.close(read_fd)
            return
        finally:
            os.close(write_fd)
        try:
            async with asyncio.timeout(self._limits.snapshot_timeout_s + _GRACE_S):
                while data := await _read(read_fd):
                    yield data
        except TimeoutError:
            return
        finally:
            os.close(read_fd)
            await asyncio.shield(self._finish(keeper))

    async def _start(self, workdir: str, write_fd: int) -> Keeper:
        limits = self._limits
        bounds = (limits.snapshot_files_max, limits.snapshot_bytes_max, limits.snapshot_timeout_s)
        command = [sys.executable, "-I", "-S", WALKER_PROGRAM, self._workspace, workdir, *map(str, bounds)]
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            return await Keeper.start(
                self._reaper,
                command,
                cwd="/",
                env={"LANG": "C.UTF-8"},
                stdio=Stdio(nowhere, write_fd, nowhere),
                on_spawned=self._walks.add,
            )
        finally:
            os.close(nowhere)

    async def _finish(self, keeper: Keeper) -> None:
        await keeper.kill(Deadline.after(_KILL_S))
        self._walks.discard(keeper)

    async def end_all(self, deadline: Deadline) -> bool:
        """Kill every walk; their streams end without an `end` frame."""
        walks = list(self._walks)
        results = [await keeper.kill(deadline) for keeper in walks]
        self._walks.difference_update(walks)
        return all(results)


async def _read(fd: int) -> bytes:
    """The next bytes of a pipe; b"" at its end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(fd, _READ_BYTES)
        except BlockingIOError:
            readable = asyncio.Event()
            loop.add_reader(fd, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(fd)
