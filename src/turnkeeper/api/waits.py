"""Requests that wait on purpose, and how they are left: a server that stops must not wait for them, and whoever leaves
does not cut off a statement, because a cancelled one costs its connection."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Waits:
    """Ends the waits of a process at once when it stops."""

    def __init__(self) -> None:
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all waits, and those that come later."""
        self._closing.set()

    async def bounded(self, waiting: Coroutine[Any, Any, T], otherwise: T) -> T:
        """What `waiting` answers, or `otherwise` if the process stops first."""
        loop = asyncio.get_running_loop()
        answer = loop.create_task(waiting)
        closing = loop.create_task(self._closing.wait())
        try:
            await asyncio.wait({answer, closing}, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else otherwise
        finally:
            answer.cancel()
            closing.cancel()
            await asyncio.gather(answer, closing, return_exceptions=True)


async def to_its_end(reading: Awaitable[T]) -> T:
    """Await a read; where the caller is cancelled meanwhile, the read still goes on to its end by itself."""
    task = asyncio.ensure_future(reading)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_forget)
        raise


def _forget(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
