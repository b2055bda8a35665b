"""The worker process: `python -I -m turnkeeper.runner.child --fd N`, one turn, then it exits (H-01).

It is started ahead of need. It imports everything, says that it is ready and waits on its descriptor, so that a turn does
not pay for Python's start. It never gets the host's token: what it may do comes with the turn, over the descriptor.

Exit status: 0 done, or a spare that was not needed; 3 the turn is over and the control plane may not know; 4 the turn was
not accepted; 2 started wrongly.
"""

import gc
import sys
from typing import Final

from turnkeeper.client.base import parse_address
from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.lease import enough_for_one_heartbeat
from turnkeeper.kit import failpoint
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.log import configure, get_logger
from turnkeeper.kit.procs import own_identity
from turnkeeper.runner.handover import ChildEnd, HandedTurn, HandoverError
from turnkeeper.runner.settings import ChildSettings
from turnkeeper.runner.turn import Turn
from turnkeeper.runner.warm import warm_up
from turnkeeper.runner.worker import EXIT_DONE, EXIT_NOT_TAKEN, Worker, timing_of_claim

EXIT_USAGE: Final = 2


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    if len(arguments) != 2 or arguments[0] != "--fd" or not arguments[1].isdecimal():
        sys.stderr.write("usage: python -m turnkeeper.runner.child --fd N (started by the host)\n")
        return EXIT_USAGE
    try:
        end = ChildEnd.of_descriptor(int(arguments[1]))
    except OSError as error:
        sys.stderr.write(f"descriptor {arguments[1]} is no socket: {error.strerror}\n")
        return EXIT_USAGE
    try:
        return _serve(end)
    except HandoverError as error:
        get_logger("runner.child").error("handover_broken", why=str(error))
        return EXIT_NOT_TAKEN


def _serve(end: ChildEnd) -> int:
    settings = end.read(ChildSettings)
    if settings is None:
        return EXIT_DONE
    configure("worker", settings.log_level)
    warm_up(settings)
    try:
        end.say_ready()
        gc.freeze()  # what was imported stays: no later collection looks at it, or copies its pages
        handed = end.read(HandedTurn)
    except (BrokenPipeError, ConnectionResetError):  # the host is gone
        return EXIT_DONE
    if handed is None:
        return EXIT_DONE
    why_not = _preflight(settings, handed)
    if why_not is not None:
        get_logger("runner.child").warning(
            "turn_not_accepted", run=handed.claim.job, attempt=handed.claim.attempt, why=why_not
        )
        end.close()
        return EXIT_NOT_TAKEN
    failpoint.before(Point.EFFECT_ACCEPT)
    end.accept()
    failpoint.after(Point.EFFECT_ACCEPT)
    return _carry_out(settings, handed)


def _preflight(settings: ChildSettings, handed: HandedTurn) -> str | None:
    """Why the turn cannot be taken; None: it can. Reads only, and sends nothing (H-02)."""
    try:
        timing = settings.read_timing()
    except (SettingRefused, TypeError) as error:
        return "; ".join(error.lines) if isinstance(error, SettingRefused) else "the timing has other fields"
    for name, url in (("control_url", settings.control_url), ("provisioner_url", settings.provisioner_url)):
        try:
            parse_address(url)
        except ValueError:
            return f"{name} is no address"  # what it is instead stays out of the log (E-02)
    timing = timing_of_claim(timing, handed)
    if not enough_for_one_heartbeat(system_clock.monotonic(), handed.claim_sent_at, timing):
        return "too little of the lease is left for one heartbeat"
    return None


def _carry_out(settings: ChildSettings, handed: HandedTurn) -> int:
    me = own_identity()
    name = f"{settings.host}/{me.pid}/{me.start_ticks}"
    claim = handed.claim
    log = get_logger("runner.worker").bind(run=claim.job, attempt=claim.attempt)
    worker = Worker(handed, settings, system_clock, log)
    turn = Turn(worker, name, log)
    log.info(
        "agent_attempt_claimed",
        attempt_no=claim.attempt_no,
        lease_generation=claim.lease_generation,
        worker=name,
        host=settings.host,
    )
    return turn.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
