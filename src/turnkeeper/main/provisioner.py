"""Composition root of the provisioner."""

import asyncio
import json
import socket
from pathlib import Path
from typing import cast

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.settings import Limits, sandbox_timing_from_environ
from turnkeeper.kit import log as logs
from turnkeeper.kit.procs import keep_signals_to_oneself
from turnkeeper.kit.stop import StopSignal
from turnkeeper.main.environment import Environment, parse_listen
from turnkeeper.main.preflight import require_log_level
from turnkeeper.main.processes import die_with_parent
from turnkeeper.main.serve import make_server
from turnkeeper.main.sockets import bind
from turnkeeper.provisioner.app import create_app
from turnkeeper.provisioner.settings import ProvisionerSettings

SHUTDOWN_S = 3


def settings_from(environment: Environment, *, isolated: bool) -> ProvisionerSettings:
    """From the environment; `SettingRefused` names what is missing or wrong."""
    secrets_file = environment.optional("TURNKEEPER_SECRETS_FILE")
    return ProvisionerSettings(
        directory=environment.path("TURNKEEPER_DATA"),
        admin_token=environment.secret("TURNKEEPER_PROVISIONER_TOKEN"),
        public_keys=read_public_keys(environment.path("TURNKEEPER_SIGNING_PUBLIC_KEYS")),
        isolated=isolated,
        secrets_file=Path(secrets_file) if secrets_file else None,
        environ={name: value for name, value in environment.values.items() if not name.startswith("TURNKEEPER_")},
        timing=sandbox_timing_from_environ(environment.values),
        limits=Limits(),
        log_level=environment.text("TURNKEEPER_LOG_LEVEL", "info"),
    )


def read_public_keys(file: Path) -> dict[str, str]:
    """The control plane's public keys: a JSON object of PEM texts by `kid`."""
    try:
        value: object = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SettingRefused(
            f"TURNKEEPER_SIGNING_PUBLIC_KEYS: {file} cannot be read as JSON ({type(error).__name__})"
        ) from error
    keys = cast("dict[object, object]", value) if isinstance(value, dict) else {}
    if not keys or not all(isinstance(kid, str) and isinstance(pem, str) for kid, pem in keys.items()):
        raise SettingRefused(f"TURNKEEPER_SIGNING_PUBLIC_KEYS: {file} must hold an object of PEM texts by key id")
    return cast("dict[str, str]", keys)


def run(listen: str, *, unsafe_no_isolation: bool) -> int:
    """Run until SIGTERM or SIGINT; sandboxes live on. The exit status."""
    die_with_parent()
    keep_signals_to_oneself()
    environment = Environment.of_process()
    logs.configure("provisioner", require_log_level(environment))
    settings = settings_from(environment, isolated=not unsafe_no_isolation)
    stop = StopSignal()
    import uvloop

    with stop.on_signals(), bind(parse_listen(listen, "--listen"), "--listen") as sock:
        uvloop.run(_serve(settings, sock, stop))
    return 0


async def _serve(settings: ProvisionerSettings, sock: socket.socket, stop: StopSignal) -> None:
    server = make_server(create_app(settings), shutdown_s=SHUTDOWN_S, lifespan=True)
    stop.on_set(lambda: setattr(server, "should_exit", True))
    await asyncio.create_task(server.serve(sockets=[sock]), name="http")
