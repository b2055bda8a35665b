"""What a provisioner process is made of: built from its settings, refused where they are wrong, run, closed."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Literal, cast

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.settings import require_valid
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.log import get_logger
from turnkeeper.provisioner import upkeep
from turnkeeper.provisioner.backends.base import Backend
from turnkeeper.provisioner.backends.local.backend import LocalBackend, LocalSettings
from turnkeeper.provisioner.fences import Fences
from turnkeeper.provisioner.identity import Callers
from turnkeeper.provisioner.secret_source import SecretSource, SecretsUnavailableError
from turnkeeper.provisioner.service import Service, ServiceTimes
from turnkeeper.provisioner.settings import ProvisionerSettings
from turnkeeper.provisioner.snapshots.service import Snapshots
from turnkeeper.provisioner.storage import Storage
from turnkeeper.wire.sandbox_start import SandboxLimits

log = get_logger("provisioner")


@dataclass(frozen=True)
class Process:
    """Everything that the routes need. `service.backend` has been checked."""

    service: Service
    snapshots: Snapshots
    callers: Callers
    clock: Clock
    upkeep_interval_s: float

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Adopt what lives, look after it within the block, let go of it afterwards. Sandboxes live on."""
        await upkeep.adopt(self.service)
        task = asyncio.create_task(upkeep.look_after(self.service, self.clock, self.upkeep_interval_s))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            await self.snapshots.close()
            await self.service.live.close()
            await self.service.backend.close()


def build(settings: ProvisionerSettings, backend: Backend | None = None, clock: Clock = system_clock) -> Process:
    """Check everything that can be refused, make the directories, say what is not isolated. `SettingRefused`."""
    require_valid(settings.timing, settings.limits)
    settings = replace(settings, directory=settings.directory.resolve())
    callers = Callers(settings.admin_token, settings.public_keys, clock)
    secrets = SecretSource(settings.secrets_file, settings.environ)
    try:
        secrets.check()
        settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        storage = Storage(settings.directory / "owners")
        fences = Fences(settings.directory / "fences")
        snapshots = Snapshots(settings.directory / "snapshots", settings.limits, clock)
    except SecretsUnavailableError as error:
        raise SettingRefused(str(error)) from error
    except OSError as error:
        raise SettingRefused(
            f"the data directory {str(settings.directory)!r} cannot be used: {error.strerror}"
        ) from error
    if backend is None:
        backend = LocalBackend(local_settings(settings), clock)
    for line in backend.check():
        log.warning("not_isolated", what=line)
    times = ServiceTimes(
        create_s=settings.create_timeout_s,
        lookup_s=settings.lookup_timeout_s,
        release_lock_s=settings.timing.release_lock_timeout_s,
        delete_s=settings.timing.delete_timeout_s,
    )
    service = Service(backend, storage, fences, secrets, clock, times)
    return Process(service, snapshots, callers, clock, settings.upkeep_interval_s)


def local_settings(settings: ProvisionerSettings) -> LocalSettings:
    """The local backend's part of the settings."""
    limits = settings.limits
    return LocalSettings(
        directory=settings.directory,
        public_keys=settings.public_keys,
        isolated=settings.isolated,
        limits=SandboxLimits(
            frame_bytes_max=limits.frame_bytes_max,
            event_bytes_max=limits.event_bytes_max,
            turn_events_bytes_max=limits.turn_events_bytes_max,
            prompt_bytes_max=limits.prompt_bytes_max,
            stderr_tail_bytes=limits.stderr_tail_bytes,
            snapshot_files_max=limits.snapshot_files_max,
            snapshot_bytes_max=limits.snapshot_bytes_max,
            snapshot_timeout_s=limits.snapshot_s,
        ),
        log_level=cast("Literal['debug', 'info', 'warning', 'error']", settings.log_level),
    )
