"""`GET jobs/<job>/signals`: a worker waits for a hint that its run was asked to stop (T-03). The database decides."""

from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.store import attempts
from turnkeeper.store.signals import run_topic
from turnkeeper.wire.worker import WORK_WAIT_S_MAX, Signals

REPAIR_S = 4.0
"""A lost signal is made good within this (F04: 5 s)."""


async def wait_for_signals(s: Services, worker: Worker, *, wait_s: float) -> Signals:
    """Returns when a cancel is requested or the attempt is over, at the latest after `wait_s`."""
    end = s.clock.monotonic() + min(max(wait_s, 0.0), WORK_WAIT_S_MAX)
    with s.bus.subscribe(run_topic(worker.run_id)) as woken:
        while True:
            state = await s.db.read("signals", lambda r: attempts.state_of(r, worker.attempt_id))
            if state.cancel_requested or state.ended:
                return Signals(cancel_requested=state.cancel_requested, ended=state.ended)
            left = end - s.clock.monotonic()
            if left <= 0:
                return Signals()
            await woken.wait(min(left, REPAIR_S))
