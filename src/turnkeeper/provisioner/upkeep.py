"""Adopting what lives at the start, and looking after it while the provisioner runs."""

import asyncio
import contextlib

from turnkeeper.client.http import CallError
from turnkeeper.domain.sandbox import Absent, Exited, Unknown
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.log import get_logger
from turnkeeper.provisioner.backends.base import Ended, Instance, Row
from turnkeeper.provisioner.live import NotItselfError
from turnkeeper.provisioner.locks import LockTimeoutError
from turnkeeper.provisioner.service import Service

log = get_logger("provisioner.upkeep")

_AT_ONCE = 8
_ANSWER_S = 15.0  # a busy manager must not be taken for a dead one
_LOCK_S = 0.01  # who is busy is looked at in the next round


async def adopt(service: Service) -> None:
    """Take over each running instance whose manager answers with the recorded generation; end those that do not.

    A silent one was half made, or is broken: in both cases nobody waits for it yet, as this runs before the first request.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(row: Row) -> None:
        async with limit, service.locks.hold(row.sandbox_id, _LOCK_S):
            match row.state:
                case Instance() as instance:
                    await _adopt_or_end(service, instance)
                case Unknown(why):
                    log.error("sandbox_state_unknown", sandbox_id=row.sandbox_id, why=why)
                case Exited(generation, cause):
                    log.info("sandbox_found_exited", sandbox_id=row.sandbox_id, generation=generation, cause=cause)
                case Absent():  # a directory without a record: nothing was ever started in it
                    await service.end(row.sandbox_id, "")

    await asyncio.gather(*(one(row) for row in await service.backend.inventory()))
    await end_leftovers(service)


async def look_after(service: Service, clock: Clock, interval_s: float) -> None:
    """Until cancelled: note which instances have ended, and end what is left over."""
    while True:
        await clock.sleep(interval_s)
        try:
            for live in service.live.all():
                await _note_end(service, live.instance)
            await end_leftovers(service)
        except (OSError, CallError) as error:
            log.warning("upkeep_failed", error_class=type(error).__name__)


async def end_leftovers(service: Service) -> None:
    """End instances that exist beside the current one of their name (F06). Busy names wait for the next round."""
    for name, generation in await service.backend.leftovers():
        with contextlib.suppress(LockTimeoutError):
            async with service.locks.hold(name, _LOCK_S):
                result = await service.end(name, generation)
                log.warning("leftover_ended", sandbox_id=name, generation=generation, result=type(result).__name__)


async def _adopt_or_end(service: Service, instance: Instance) -> None:
    live = await service.live.put(instance)
    try:
        state = await live.state(_ANSWER_S)
    except (CallError, NotItselfError) as error:
        tail = await service.backend.tail(instance.sandbox_id)
        result = await service.end(instance.sandbox_id, instance.generation)
        log.warning(
            "sandbox_not_adopted",
            sandbox_id=instance.sandbox_id,
            generation=instance.generation,
            error_class=type(error).__name__,
            ended=isinstance(result, Ended | Absent),
            log_tail=tail,
        )
        return
    log.info("sandbox_adopted", sandbox_id=instance.sandbox_id, generation=instance.generation, boot_id=state.boot_id)


async def _note_end(service: Service, instance: Instance) -> None:
    if service.locks.is_held(instance.sandbox_id):
        return
    state = await service.look(instance.sandbox_id)
    if isinstance(state, Exited) and state.generation == instance.generation:
        tail = await service.backend.tail(instance.sandbox_id)
        log.warning(
            "sandbox_exited",
            sandbox_id=instance.sandbox_id,
            generation=instance.generation,
            cause=state.cause,
            log_tail=tail,
        )
        await service.live.drop(instance.sandbox_id)
