"""Puts the manager together. Importing this imports everything that the first answers do not need."""

from collections.abc import Awaitable, Callable

from turnkeeper.kit import log
from turnkeeper.sandboxd.deadman import DeadMansSwitches
from turnkeeper.sandboxd.http import HttpAnswer, HttpRequest
from turnkeeper.sandboxd.processes import Reaper
from turnkeeper.sandboxd.routes import Routes
from turnkeeper.sandboxd.supervisor import Supervisor
from turnkeeper.sandboxd.tokens import TokenVerifier
from turnkeeper.wire.sandbox_start import SandboxStart

_log = log.get_logger("sandboxd")
Handle = Callable[[HttpRequest], Awaitable[HttpAnswer]]


def prepare(start: SandboxStart) -> Callable[[SandboxStart, str], Handle]:
    """What takes time and needs no event loop: the log, the keys. Raises what makes a start impossible."""
    log.configure("sandboxd", start.log_level)
    verifier = TokenVerifier(start.public_keys)

    def build(start: SandboxStart, boot_id: str) -> Handle:
        reaper, switches = Reaper(), DeadMansSwitches()
        reaper.start()
        switches.start()
        _log.info("sandboxd_started", boot_id=boot_id, generation=start.generation)
        return Routes(Supervisor(start, boot_id, reaper, switches), verifier, start.secret).handle

    return build
