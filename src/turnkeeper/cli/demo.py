"""`turnkeeper demo`."""

from pathlib import Path

import click

from turnkeeper.cli.arguments import DIRECTORY
from turnkeeper.cli.output import json_option


@click.command(epilog="Example: turnkeeper demo --once --json")
@click.option("--once", is_flag=True, help="End after the conversation, and remove what was made for it.")
@click.option("--data", type=DIRECTORY, default=None, help="Data directory; default: a fresh one.")
@click.option(
    "--port", default=None, type=click.IntRange(0, 65535), help="Port; default: 8420, or a free one if that is taken."
)
@click.option("--unsafe-no-isolation", is_flag=True, help="Run the agent without a sandbox.")
@json_option
def demo(once: bool, data: Path | None, port: int | None, unsafe_no_isolation: bool, as_json: bool) -> int:
    """Start everything, run a conversation of three turns in a sandbox, and show what happened.

    A file is written, a command runs, and the third turn proves that the agent remembers the first two. With --json the
    last line is one JSON object. Exit status 1 if anything that the demo promises did not happen.
    """
    from turnkeeper.cli.demo_show import run_demo

    return run_demo(once=once, data=data, port=port, unsafe_no_isolation=unsafe_no_isolation, as_json=as_json)
