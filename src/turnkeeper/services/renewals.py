"""Renewals that wait at the same time are made together, by one transaction (protocol 1: a batch).

A transaction costs its round trips and its fsync, however many rows it renews. So while one is under way, the renewals
that arrive wait for the next one, and are made by it, in two statements: lock in id order without waiting for anybody,
then look. A renewal that arrives alone is a batch of one, and starts at once; after a batch there is a short pause, in
which those who were answered come again, and those on other connections: several times cheaper than one batch for each few.

A batch never waits for a row. An attempt that somebody else has locked is renewed by a transaction of its own, which
waits, so that one turn's lock holds up nobody else's renewal. And a transaction that takes long holds up nobody for long:
those that wait then start another one.
"""

import asyncio
import contextvars
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Final

from turnkeeper.kit.clock import system_clock
from turnkeeper.store import attempts
from turnkeeper.store.attempts import AttemptId, Renewal
from turnkeeper.store.guards import Lease
from turnkeeper.store.locks import lock_attempt, lock_attempts_skipping
from turnkeeper.store.tx import Database, Tx

BATCH_MAX: Final = 200
"""So many leases in one transaction: it holds their rows until its commit."""
BATCHES_MAX: Final = 4
"""So many transactions at once; fewer than the pool's connections."""
GATHER_S: Final = 0.002
"""What comes right after a batch waits so long for company: a transaction for few costs nearly as much as one for many."""
LONG_S: Final = 0.1
"""A transaction that takes longer is not waited for by those who come later."""

_TRANSACTION: Final = "renew"
_Waiting = dict[Lease, list[asyncio.Future[Renewal | None]]]


@dataclass
class Renewals:
    """The renewals of one process that wait. Belongs to one event loop."""

    db: Database
    _waiting: _Waiting = field(default_factory=_Waiting, init=False)
    _under_way: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)
    _batches: int = field(default=0, init=False)
    _leader: asyncio.Task[None] | None = field(default=None, init=False)
    """Whose next transaction takes those that wait. None: whoever comes starts one."""

    async def renew(self, lease: Lease) -> Renewal | None:
        """The renewal, committed; None: refused for good. Two callers with one lease get the same. Errors: the database's."""
        future: asyncio.Future[Renewal | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lease, []).append(future)
        self._lead()
        return await future

    def _lead(self) -> None:
        if self._waiting and self._leader is None and self._batches < BATCHES_MAX:
            self._batches += 1
            self._leader = self._start(self._make_batches())

    def _pass_on(self, leader: asyncio.Task[None] | None) -> None:
        """Its transaction takes long: those that wait do not wait for it."""
        if self._leader is leader:
            self._leader = None
            self._lead()

    async def _make_batches(self) -> None:
        """One after the other, until nobody waits or somebody else leads."""
        me, loop = asyncio.current_task(), asyncio.get_running_loop()
        try:
            while self._waiting and self._leader in (None, me):
                self._leader = me
                timer = loop.call_later(LONG_S, self._pass_on, me)
                try:
                    await self._make(self._take())
                finally:
                    timer.cancel()
                await system_clock.sleep(GATHER_S)
        finally:
            self._batches -= 1
            if self._leader is me:
                self._leader = None

    def _take(self) -> _Waiting:
        if len(self._waiting) <= BATCH_MAX:
            batch, self._waiting = self._waiting, {}
            return batch
        return {lease: self._waiting.pop(lease) for lease in list(self._waiting)[:BATCH_MAX]}

    async def _make(self, batch: _Waiting) -> None:
        leases = list(batch)

        async def work(tx: Tx) -> tuple[frozenset[str], dict[Lease, Renewal]]:
            # The lock alone first: an UPDATE that had to wait could be judged by the time from before the wait.
            ids = sorted({lease.attempt_id for lease in leases})
            locked = frozenset(row.id for row in await lock_attempts_skipping(tx, ids, AttemptId))
            ours = [lease for lease in leases if lease.attempt_id in locked]
            return locked, await attempts.renew_all(tx, ours) if ours else {}

        try:
            locked, renewed = await self.db.run(_TRANSACTION, work)
        except BaseException as error:
            for futures in batch.values():
                _fail(futures, error)
            if not isinstance(error, Exception):
                raise
            return
        for lease, futures in batch.items():
            if lease.attempt_id in locked:
                _answer(futures, renewed.get(lease))
            else:
                self._start(self._make_alone(lease, futures))

    async def _make_alone(self, lease: Lease, futures: Sequence[asyncio.Future[Renewal | None]]) -> None:
        """Somebody has locked the row, or there is none."""

        async def work(tx: Tx) -> Renewal | None:
            if not await lock_attempt(tx, lease.attempt_id):
                return None
            return await attempts.renew(tx, lease)

        try:
            _answer(futures, await self.db.run(_TRANSACTION, work))
        except BaseException as error:
            _fail(futures, error)
            if not isinstance(error, Exception):
                raise

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        # In a context of its own: it works for many requests, and outlives the one that happened to start it.
        task = asyncio.get_running_loop().create_task(work, name="renewals", context=contextvars.Context())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


def _answer(futures: Sequence[asyncio.Future[Renewal | None]], renewal: Renewal | None) -> None:
    for future in futures:
        if not future.done():  # whoever left does not hear it; the renewal stands
            future.set_result(renewal)


def _fail(futures: Sequence[asyncio.Future[Renewal | None]], error: BaseException) -> None:
    for future in futures:
        if future.done():
            continue
        if isinstance(error, Exception):
            future.set_exception(error)
        else:
            future.cancel()  # we are stopped, and with us whoever waits
