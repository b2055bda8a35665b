"""`turnkeeper chat`: one message, or a talk line by line."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.arguments import AGENT_NAME, THREAD_ID, WORKDIR
from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.output import json_option, say

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient

Connect = Callable[[], AbstractContextManager["OwnerClient"]]
LOST_WITHIN_S, LOOK_S = 3.0, 0.2


@click.command(
    epilog='Examples: turnkeeper chat "hello" · turnkeeper chat --thread 0193e2a4-7c1e-7b55-8f00-0d6f7a1b2c3d'
)
@click.argument("text", required=False)
@click.option("--agent", type=AGENT_NAME, default="scripted", show_default=True, help="Agent of a new conversation.")
@click.option("--thread", type=THREAD_ID, default=None, help="Go on in this conversation.")
@click.option("--workdir", type=WORKDIR, default=None, help="Workdir of a new conversation; default: a fresh one.")
@json_option
@connection_options
def chat(connect: Connect, text: str | None, agent: str, thread: str | None, workdir: str | None, as_json: bool) -> int:
    """Send TEXT to an agent and show its turn; without TEXT, read messages from the terminal line by line.

    Ctrl-C during a turn cancels it; at the prompt it leaves. Exit status 1 if the last turn did not complete.
    """
    from turnkeeper.cli.conversations import begin, whole_thread

    if text is not None and not text.strip():
        raise click.BadArgumentUsage(
            "the message is empty; write what the agent should do, or leave TEXT away for a talk"
        )
    with connect() as client:
        if thread is None:
            thread = begin(client, agent, workdir).thread_id
            if not as_json:
                say(f"conversation {thread}", dim=True)
        else:
            thread = whole_thread(client, thread)
        if text is not None:
            return 0 if turn(client, thread, text, as_json=as_json) == "completed" else 1
        status = "completed"
        while (line := _read_line(as_json=as_json)) is not None:
            if line.strip():
                status = turn(client, thread, line, as_json=as_json)
        return 0 if status == "completed" else 1


def turn(client: "OwnerClient", thread: str, text: str, *, as_json: bool) -> str:
    """One message and its whole stream; the run's final status."""
    from turnkeeper.cli.stream import show_stream
    from turnkeeper.kit.ids import new_id

    run = client.submit(thread, text, idempotency_key=new_id()).run.id
    try:
        end = show_stream(client.run_events(run), as_json=as_json)
    except KeyboardInterrupt:
        say("\ncancelling (Ctrl-C again leaves at once)", dim=True, err=True)
        client.cancel(run)
        end = show_stream(client.run_events(run), as_json=as_json)
    if end.get("status") != "completed" and not as_json:
        _tell_if_lost(client, thread, run)
    return str(end.get("status"))


def _tell_if_lost(client: "OwnerClient", thread: str, run: str) -> None:
    """Say that the conversation is over. That is decided a moment after the end of a turn that had reached its agent, and
    is no event of the run, whose stream ends with its end (A-03)."""
    import threading

    from turnkeeper.kit.clock import system_clock

    reached = (client.run(run).error_detail or {}).get("delivered") != "no"
    ends = system_clock.monotonic() + (LOST_WITHIN_S if reached else 0)
    while (text := client.conversation(thread).lost_text) is None and system_clock.monotonic() < ends:
        system_clock.wait(threading.Event(), LOOK_S)
    if text is not None:
        say(f"! {text}", fg="red")


def _read_line(*, as_json: bool) -> str | None:
    """The next line; None at the end. There is a prompt where a person is at both ends, and never within JSON."""
    prompt = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    try:
        return input("> " if prompt else "")
    except EOFError:
        if prompt:
            say()
        return None
