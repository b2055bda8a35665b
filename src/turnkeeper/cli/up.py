"""`turnkeeper up`."""

from pathlib import Path

import click

from turnkeeper.cli.arguments import ADDRESS, DIRECTORY
from turnkeeper.cli.handover import shown_once
from turnkeeper.cli.output import json_option


@click.command(epilog="Example: turnkeeper up --data ./turnkeeper-data --port 8420")
@click.option(
    "--data",
    envvar="TURNKEEPER_DATA",
    type=DIRECTORY,
    default=None,
    help="Data directory; default: ~/.local/share/turnkeeper.",
)
@click.option(
    "--host", "address", type=ADDRESS, default="127.0.0.1", show_default=True, help="Address of the page and the API."
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    type=ADDRESS,
    multiple=True,
    metavar="NAME",
    help="A further name by which page and API are reached; may be repeated. --host is one by itself; `*` for any name.",
)
@click.option(
    "--port", default=8420, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 picks a free one."
)
@click.option(
    "--capacity",
    envvar="TURNKEEPER_CAPACITY",
    default=8,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="How many trees run at once.",
)
@click.option(
    "--unsafe-no-isolation",
    is_flag=True,
    help="Run agents without a sandbox. They can read and write all that this user can.",
)
@click.option(
    "--end-sandboxes",
    is_flag=True,
    help="End the sandboxes when stopping; sessions are loaded again when they are used. Default: they live on.",
)
@json_option
def up(
    data: Path | None,
    address: str,
    allowed_hosts: tuple[str, ...],
    port: int,
    capacity: int,
    unsafe_no_isolation: bool,
    end_sandboxes: bool,
    as_json: bool,
) -> int:
    """Run everything on this machine until Ctrl-C: embedded PostgreSQL, control plane, provisioner and a host.

    DATABASE_URL, if set, is used instead of the embedded PostgreSQL.
    """
    from turnkeeper.main.up import Running, UpSettings, announce, run_up

    def tell(running: Running) -> None:
        with shown_once(
            "the link to the page was made", "everything stops again; start it with an output that takes it"
        ):
            announce(running, as_json=as_json)

    settings = UpSettings.of_environment(
        data,
        address=address,
        port=port,
        capacity=capacity,
        unsafe_no_isolation=unsafe_no_isolation,
        end_sandboxes=end_sandboxes,
        allowed_hosts=allowed_hosts,
    )
    return run_up(settings, on_ready=tell)
