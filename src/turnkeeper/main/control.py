"""Composition root of the control plane: database, use cases, HTTP application, and the loops that keep nothing stuck."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from turnkeeper.api.app import create_app
from turnkeeper.api.settings import LOOPBACK_HOSTS, ApiSettings
from turnkeeper.client.provisioner_admin import ProvisionerAdmin
from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.settings import (
    Limits,
    SandboxTiming,
    Timing,
    require_valid,
    sandbox_timing_from_environ,
    timing_from_environ,
    with_lease_ttl,
)
from turnkeeper.kit import log as logs
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.procs import keep_signals_to_oneself
from turnkeeper.kit.stop import StopSignal
from turnkeeper.main.environment import Environment, ListenAddress, parse_listen
from turnkeeper.main.outside import ProvisionerCommands, ProvisionerDeleter
from turnkeeper.main.preflight import require_log_level
from turnkeeper.main.processes import die_with_parent
from turnkeeper.main.ready_made import ready_made_digests
from turnkeeper.main.serve import make_server
from turnkeeper.main.sockets import bind
from turnkeeper.services import cleanup, reap, reconcile
from turnkeeper.services.context import Services
from turnkeeper.services.signer import Signer
from turnkeeper.store.errors import DatabaseError
from turnkeeper.store.pool import open_database
from turnkeeper.store.signals import SignalBus
from turnkeeper.web.app import create_pages
from turnkeeper.web.settings import WebSettings

POOL_MIN, POOL_MAX = 2, 10
SHUTDOWN_S = 3

log = get_logger("main.control")


@dataclass(frozen=True)
class ControlSettings:
    """What one control plane is started with."""

    dsn: str = field(repr=False)
    listen: ListenAddress
    signing_key: bytes = field(repr=False)
    timing: Timing
    sandbox_timing: SandboxTiming
    limits: Limits
    provisioner_url: str | None
    provisioner_token: str | None = field(repr=False)
    allowed_hosts: frozenset[str] | None
    expect_hosts: bool
    log_level: str


def settings_from(environment: Environment, listen: str, lease_ttl: int | None) -> ControlSettings:
    """From the environment; `SettingRefused` names what is missing or wrong. Warnings are logged (L-09)."""
    timing, warnings = timing_from_environ(environment.values)
    for line in warnings:
        log.warning("setting_ignored", text=line)
    if lease_ttl is not None:
        timing = with_lease_ttl(timing, str(lease_ttl))
    sandbox_timing = sandbox_timing_from_environ(environment.values)
    limits = Limits(trees_per_owner=environment.trees_per_owner())
    require_valid(timing, sandbox_timing, limits)
    provisioner_url = environment.optional("TURNKEEPER_PROVISIONER_URL")
    key_file = environment.path("TURNKEEPER_SIGNING_KEY_FILE")
    return ControlSettings(
        dsn=environment.text("DATABASE_URL"),
        listen=parse_listen(listen, "--listen"),
        signing_key=_read_key(key_file),
        timing=timing,
        sandbox_timing=sandbox_timing,
        limits=limits,
        provisioner_url=provisioner_url,
        provisioner_token=environment.secret("TURNKEEPER_PROVISIONER_TOKEN") if provisioner_url else None,
        allowed_hosts=_allowed_hosts(environment),
        expect_hosts=environment.optional("TURNKEEPER_EXPECT_HOSTS") == "1",
        log_level=environment.text("TURNKEEPER_LOG_LEVEL", "info"),
    )


def run(listen: str, lease_ttl: int | None) -> int:
    """Run until SIGTERM or SIGINT. The exit status."""
    die_with_parent()
    keep_signals_to_oneself()
    environment = Environment.of_process()
    logs.configure("control", require_log_level(environment))
    settings = settings_from(environment, listen, lease_ttl)
    stop = StopSignal()
    import uvloop

    with stop.on_signals():
        try:
            uvloop.run(serve(settings, stop))
        except DatabaseError as error:
            raise SettingRefused(str(error)) from error
    return 0


async def serve(settings: ControlSettings, stop: StopSignal) -> None:
    """Serve until `stop`."""
    with bind(settings.listen, "--listen") as sock:
        async with _services(settings) as services:
            pages = create_pages(services, WebSettings())
            app = create_app(services, ApiSettings(allowed_hosts=settings.allowed_hosts), pages=pages)
            server = make_server(app, shutdown_s=SHUTDOWN_S)
            loops = [
                asyncio.create_task(work.run(services, stop), name=work.__name__) for work in (reap, reconcile, cleanup)
            ]
            serving = asyncio.create_task(server.serve(sockets=[sock]), name="http")
            stopping = asyncio.create_task(stop.wait_async(), name="stop")
            try:
                # A loop that ends by itself is a defect: better a restart than a control plane that lets things get stuck.
                await asyncio.wait([serving, stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.set("a part ended")
                await app.close_streams()
                server.should_exit = True
                stopping.cancel()
                results = await asyncio.gather(serving, *loops, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result


@contextlib.asynccontextmanager
async def _services(settings: ControlSettings) -> AsyncGenerator[Services]:
    bus = SignalBus(settings.dsn)
    async with (
        open_database(settings.dsn, min_size=POOL_MIN, max_size=POOL_MAX, application_name="turnkeeper-control") as db,
        _provisioner(settings) as provisioner,
    ):
        db.attach(bus)
        await bus.start()
        try:
            yield Services(
                db=db,
                bus=bus,
                timing=settings.timing,
                limits=settings.limits,
                signer=Signer(settings.signing_key),
                sandbox_timing=settings.sandbox_timing,
                sandboxes=None if provisioner is None else ProvisionerDeleter(provisioner, settings.sandbox_timing),
                commands=None if provisioner is None else ProvisionerCommands(provisioner),
                ready_made=ready_made_digests(),
            )
        finally:
            await bus.stop()


@contextlib.asynccontextmanager
async def _provisioner(settings: ControlSettings) -> AsyncGenerator[ProvisionerAdmin | None]:
    if settings.provisioner_url is None or settings.provisioner_token is None:
        yield None
        return
    client = ProvisionerAdmin(settings.provisioner_url, settings.provisioner_token)
    try:
        yield client
    finally:
        await client.close()


def _read_key(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingRefused(f"TURNKEEPER_SIGNING_KEY_FILE: {file} cannot be read ({error.strerror})") from error


def _allowed_hosts(environment: Environment) -> frozenset[str] | None:
    """`TURNKEEPER_ALLOWED_HOSTS`: names by which pages and owner API are reached, comma-separated; `*` for any."""
    given = environment.optional("TURNKEEPER_ALLOWED_HOSTS")
    if given == "*":
        return None
    names = {name.strip() for name in (given or "").split(",") if name.strip()}
    return LOOPBACK_HOSTS | names
