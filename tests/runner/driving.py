"""Carrying out one turn against the peers, inside the test's process, where threads and clock are at hand."""

import dataclasses
import threading
from dataclasses import dataclass, field

from runner.peers import Peers
from turnkeeper.domain.settings import Timing
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.log import get_logger
from turnkeeper.runner.handover import HandedTurn
from turnkeeper.runner.settings import ChildSettings
from turnkeeper.runner.turn import Turn
from turnkeeper.runner.worker import Worker
from turnkeeper.wire.worker import Claim

FAST = Timing(
    control_timeout_s=3,
    heartbeat_retry_delay_s=0.05,
    receipt_delay_s=0.05,
    receipt_timeout_s=0.5,
    cancel_grace_s=0.3,
    work_wait_s=0.5,
    drain_s=1,
)
"""Waits between tries cut down; the lease as in production."""


@dataclass
class Driven:
    """A turn that runs in a thread of its own."""

    worker: Worker
    thread: threading.Thread
    statuses: list[int] = field(default_factory=list[int])
    ended_hard: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout_s: float = 20.0) -> int:
        """Its exit status."""
        self.thread.join(timeout_s)
        assert not self.thread.is_alive(), "the turn did not end"
        assert self.statuses, "the turn raised"
        return self.statuses[0]


def drive(
    peers: Peers, timing: Timing = FAST, clock: Clock = system_clock, *, claim_sent_at: float | None = None
) -> Driven:
    """Start a turn on the peers' claim."""
    settings = ChildSettings(
        host="host-1",
        control_url=peers.url,
        provisioner_url=peers.url,
        timing=dataclasses.asdict(timing),
        log_level="info",
    )
    handed = HandedTurn(
        claim=Claim.model_validate(peers.claim()),
        claim_sent_at=clock.monotonic() if claim_sent_at is None else claim_sent_at,
        incarnation=peers.root,
    )
    log = get_logger("test")
    ended_hard = threading.Event()
    worker = Worker(handed, settings, clock, log, end_process=ended_hard.set)
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(Turn(worker, "host-1/1/1", log).run()), daemon=True)
    driven = Driven(worker, thread, statuses, ended_hard)
    thread.start()
    return driven


def run_turn(peers: Peers, timing: Timing = FAST) -> int:
    """Carry one turn out; returns the worker's exit status."""
    return drive(peers, timing).wait()
