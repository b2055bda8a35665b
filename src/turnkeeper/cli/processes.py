"""The process commands. Each reads its settings from the environment (docs/operations/settings.md); `up` starts them all."""

import os

import click


def _check(*, listen: str | None = None, lease_ttl: int | None = None) -> None:
    """Refuse what was given wrongly before anything heavy is imported: `OptionRefused` ends the command with status 2."""
    from turnkeeper.domain.settings import timing_from_environ, with_lease_ttl
    from turnkeeper.main.environment import parse_listen

    if listen is not None:
        parse_listen(listen, "--listen")
    if lease_ttl is not None:
        with_lease_ttl(timing_from_environ(os.environ)[0], str(lease_ttl))


def _environment_help(command: str) -> str:
    return f"Settings come from the environment; `turnkeeper up` sets them. Example: turnkeeper {command}"


@click.command(epilog=_environment_help("control --listen 127.0.0.1:8420"))
@click.option("--listen", envvar="TURNKEEPER_LISTEN", default="127.0.0.1:8420", show_default=True, help="host:port")
@click.option("--lease-ttl", type=int, default=None, help="Lifetime of an attempt's lease, in s (AGENT_LEASE_TTL).")
def control(listen: str, lease_ttl: int | None) -> int:
    """Run the control plane: owner API, worker API, pages, reaper, reconciler."""
    _check(listen=listen, lease_ttl=lease_ttl)
    from turnkeeper.main.control import run

    return run(listen, lease_ttl)


@click.command(epilog=_environment_help("provisioner --listen 127.0.0.1:8421"))
@click.option(
    "--listen",
    envvar="TURNKEEPER_PROVISIONER_LISTEN",
    default="127.0.0.1:8421",
    show_default=True,
    help="host:port or unix:/path",
)
@click.option(
    "--unsafe-no-isolation",
    is_flag=True,
    help="Run agents as plain processes. They can read and write all that this user can.",
)
def provisioner(listen: str, unsafe_no_isolation: bool) -> int:
    """Run the provisioner: sandboxes and the owners' storage on this machine."""
    _check(listen=listen)
    from turnkeeper.main.provisioner import run

    return run(listen, unsafe_no_isolation=unsafe_no_isolation)


@click.command(epilog=_environment_help("host --capacity 8"))
@click.option(
    "--capacity",
    envvar="TURNKEEPER_CAPACITY",
    default=8,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="How many trees at once.",
)
@click.option(
    "--lease-ttl", type=int, default=None, help="Lifetime that claims ask for, in s; default: the control plane's."
)
def host(capacity: int, lease_ttl: int | None) -> int:
    """Run a host: it claims runs and starts one child process for each turn. SIGTERM drains it."""
    _check(lease_ttl=lease_ttl)
    from turnkeeper.main.host import run

    return run(capacity, lease_ttl)


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example (as the launcher starts it): turnkeeper sandboxd --listen-fd 3 --config-fd 4",
)
@click.option("--listen-fd", type=int, required=True, help="A descriptor that listens.")
@click.option("--config-fd", type=int, required=True, help="A descriptor that holds the start-up message.")
def sandboxd(listen_fd: int, config_fd: int) -> None:
    """Run the sandbox manager, pid 1 of a sandbox. It is started by a launcher, not by hand."""
    import sys

    for descriptor in (listen_fd, config_fd):
        os.set_inheritable(descriptor, True)
    os.execv(  # noqa: S606 - pid 1 must be the manager itself, without the command line's modules
        sys.executable,
        [sys.executable, "-I", "-m", "turnkeeper.sandboxd", f"--listen-fd={listen_fd}", f"--config-fd={config_fd}"],
    )
