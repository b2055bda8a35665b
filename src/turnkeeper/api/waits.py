"""Requests that wait on purpose. A server that stops must not wait for them."""

import asyncio
import contextlib
from collections.abc import Coroutine
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
            for task in (answer, closing):
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
