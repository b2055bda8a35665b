"""`turnkeeper chat`: one message, or a talk line by line."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.arguments import AGENT_NAME, THREAD_ID, WORKDIR
from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.output import json_option, say

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient, StreamEvent

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

    followed = _Followed(client, _submitted(client, thread, text))
    try:
        end = show_stream(followed.events(), as_json=as_json)
    except KeyboardInterrupt:
        say(f"\ncancelling run {followed.run} (Ctrl-C again leaves at once)", dim=True, err=True)
        again = f"`turnkeeper runs cancel {followed.run}`"
        with _noted(f"it is not known whether run {followed.run} will be cancelled; {again} asks again"):
            client.persist(lambda: client.cancel(followed.run))
        end = show_stream(followed.events(), as_json=as_json)
    status = str(end.get("status"))
    if status != "completed" and not as_json:
        state = f"`turnkeeper conversations show {thread}` tells how the conversation stands"
        with _noted(f"the turn has ended ({status}); {state}"):
            _tell_if_lost(client, thread, followed.run)
    return status


def _submitted(client: "OwnerClient", thread: str, text: str) -> str:
    """The id of the message's run. The message is repeated under one key while nothing answers, and so stored once."""
    from turnkeeper.client.failures import CallError, ClientError, ConnectionFailed
    from turnkeeper.kit.ids import new_id

    key, may_be_stored = new_id(), False
    unknown = (
        "it is not known whether the message was stored; "
        f"`turnkeeper runs list --thread {thread}` shows its run if it was"
    )

    def send() -> str:
        nonlocal may_be_stored
        try:
            return client.submit(thread, text, idempotency_key=key).run.id
        except CallError as error:
            refused = isinstance(error, ClientError) and 400 <= error.status < 500
            never_left = isinstance(error, ConnectionFailed) and not error.sent
            may_be_stored = may_be_stored or not (refused or never_left)
            raise

    try:
        return client.persist(send)
    except KeyboardInterrupt as error:
        raise click.ClickException(f"stopped; {unknown}") from error
    except CallError as error:
        if may_be_stored:
            error.add_note(unknown)
        elif isinstance(error, ConnectionFailed):
            error.add_note("the message was not sent; is `turnkeeper up` running?")
        raise


@dataclass
class _Followed:
    """A run's stream, which is taken up again after the last event that was shown."""

    client: "OwnerClient"
    run: str
    after: int | None = None

    def events(self) -> "Iterator[StreamEvent]":
        """What was not shown yet, to the end."""
        from turnkeeper.client.failures import CallError

        try:
            for event in self.client.run_events(self.run, self.after):
                yield event
                self.after = self.after if event.seq is None else event.seq
        except CallError as error:
            more = "" if self.after is None else f" --after {self.after}"
            error.add_note(
                f"the message was accepted as run {self.run}, which goes on without this command, or when the control plane "
                f"is back; follow it with `turnkeeper runs events {self.run}{more}` instead of sending it again"
            )
            raise


@contextmanager
def _noted(note: str) -> Generator[None]:
    """A call that fails says `note` as well."""
    from turnkeeper.client.failures import CallError

    try:
        yield
    except CallError as error:
        error.add_note(note)
        raise


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
