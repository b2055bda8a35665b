"""Keyed locks: one for each sandbox id, waited for at most so long (C-06)."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator


class LockTimeoutError(Exception):
    """The lock was not free in time; nothing was done."""

    def __init__(self, key: str, timeout_s: float) -> None:
        super().__init__(f"{key} is busy with another operation for more than {timeout_s:g} s")


class KeyedLocks:
    """Locks by name, fair in the order of asking. A name that nobody holds or waits for takes no room."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def hold(self, key: str, timeout_s: float) -> AsyncGenerator[None]:
        """Hold the lock of `key` within the block; `LockTimeoutError` if it is not free within `timeout_s`."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    await lock.acquire()
            except TimeoutError:
                raise LockTimeoutError(key, timeout_s) from None
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    def is_held(self, key: str) -> bool:
        """Whether somebody holds or waits for the lock of `key` now."""
        return key in self._locks
