"""A loop of the control plane: works, waits until there may be work again, survives failures, ends when told to."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from turnkeeper.kit.log import get_logger
from turnkeeper.kit.stop import StopSignal
from turnkeeper.services.context import Services
from turnkeeper.store.errors import DatabaseError
from turnkeeper.store.signals import Topic

_FAILED_WAIT_S = 2.0
_WAIT_S_MIN = 0.05
_log = get_logger("services.loop")


async def run_loop(
    s: Services,
    stop: StopSignal,
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    wait_s: Callable[[], Awaitable[float]],
    topics: tuple[Topic, ...] = (),
) -> None:
    """Call `work`, then wait as long as `wait_s` says or until a signal on `topics`, until `stop` is set.

    A database that does not answer is waited for; anything else that fails is logged with its traceback and tried again:
    one defect in one scope must not stop what keeps every other scope from getting stuck.
    """
    event_loop = asyncio.get_running_loop()
    with s.bus.subscribe(*topics) as woken:

        def wake() -> None:  # called by whatever thread sets the flag
            with contextlib.suppress(RuntimeError):
                event_loop.call_soon_threadsafe(woken.wake)

        stop.on_set(wake)
        while not stop.is_set:
            try:
                await work()
                pause_s = max(_WAIT_S_MIN, await wait_s())
            except DatabaseError as error:
                _log.warning("loop_failed", loop=name, error=type(error).__name__)
                pause_s = _FAILED_WAIT_S
            except Exception as error:
                _log.exception("loop_failed", loop=name, error=type(error).__name__)
                pause_s = _FAILED_WAIT_S
            if not stop.is_set:
                await woken.wait(pause_s)
