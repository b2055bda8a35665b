"""Deliberately bad backends: each is a real one that misbehaves in one way (JupyterHub's bad spawners are the model)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from turnkeeper.domain.sandbox import Unknown
from turnkeeper.kit.ids import new_id
from turnkeeper.provisioner.backends.base import (
    Backend,
    CreateFailedError,
    EndResult,
    Instance,
    Lookup,
    Order,
    Row,
)


class Passing:
    """Hands everything on."""

    name = "bad"

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.creates = 0
        self.ends: list[str] = []

    def check(self) -> tuple[str, ...]:
        return self.inner.check()

    async def create(self, order: Order) -> Instance:
        self.creates += 1
        return await self.inner.create(order)

    async def lookup(self, sandbox_id: str) -> Lookup:
        return await self.inner.lookup(sandbox_id)

    async def end(self, sandbox_id: str, generation: str) -> EndResult:
        self.ends.append(generation)
        return await self.inner.end(sandbox_id, generation)

    async def inventory(self) -> tuple[Row, ...]:
        return await self.inner.inventory()

    async def leftovers(self) -> tuple[tuple[str, str], ...]:
        return await self.inner.leftovers()

    async def tail(self, sandbox_id: str) -> str:
        return await self.inner.tail(sandbox_id)

    def missing(self, command: str, programs: Sequence[str]) -> str | None:
        return self.inner.missing(command, programs)

    async def close(self) -> None:
        await self.inner.close()


class LateCreate(Passing):
    """The first create is not there when it is waited for, and succeeds some time after it was given up."""

    def __init__(self, inner: Backend, late_s: float) -> None:
        super().__init__(inner)
        self.late_s = late_s
        self.done = asyncio.Event()
        self.tasks: list[asyncio.Task[Instance]] = []

    async def create(self, order: Order) -> Instance:
        self.creates += 1
        if self.creates > 1:
            return await self.inner.create(order)
        task = asyncio.create_task(self._late(order))
        self.tasks.append(task)
        return await asyncio.shield(task)

    async def _late(self, order: Order) -> Instance:
        await asyncio.sleep(self.late_s)
        try:
            return await self.inner.create(order)
        finally:
            self.done.set()


class HalfCreate(Passing):
    """The first create makes an instance and then fails to say so."""

    async def create(self, order: Order) -> Instance:
        instance = await super().create(order)
        if self.creates == 1:
            raise CreateFailedError("the answer was lost")
        return instance


class Unanswering(Passing):
    """While `silent` every look has no answer: at once, or only after longer than anybody waits."""

    def __init__(self, inner: Backend, hang_s: float = 0) -> None:
        super().__init__(inner)
        self.silent = False
        self.hang_s = hang_s

    async def lookup(self, sandbox_id: str) -> Lookup:
        if self.silent:
            await asyncio.sleep(self.hang_s)
            return Unknown("503 from the engine")
        return await super().lookup(sandbox_id)


class Unending(Passing):
    """While `stuck` nothing can be shown to have ended."""

    stuck = False

    async def end(self, sandbox_id: str, generation: str) -> EndResult:
        if self.stuck:
            self.ends.append(generation)
            return Unknown("still terminating")
        return await super().end(sandbox_id, generation)


class Lying(Passing):
    """While `lie` is set it shows the instance as another generation, or as another owner's."""

    lie = ""

    async def lookup(self, sandbox_id: str) -> Lookup:
        found = await super().lookup(sandbox_id)
        if isinstance(found, Instance) and self.lie == "generation":
            return replace(found, generation=new_id())
        if isinstance(found, Instance) and self.lie == "owner":
            return replace(found, shape=replace(found.shape, uid=new_id()))
        return found


class Vanishing(Passing):
    """While `vanish` is set each running instance is gone right after it was seen."""

    vanish = False

    async def lookup(self, sandbox_id: str) -> Lookup:
        found = await super().lookup(sandbox_id)
        if self.vanish and isinstance(found, Instance):
            self.vanish = False
            await self.inner.end(sandbox_id, found.generation)
        return found


class Doubled(Passing):
    """Keeps a second instance of a name, as an engine without unique names would."""

    extra: tuple[str, str] | None = None

    async def leftovers(self) -> tuple[tuple[str, str], ...]:
        return () if self.extra is None else (self.extra,)

    async def end(self, sandbox_id: str, generation: str) -> EndResult:
        if self.extra == (sandbox_id, generation):
            self.extra = None
        return await super().end(sandbox_id, generation)
