"""`turnkeeper conversations`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.arguments import AGENT_NAME, THREAD_ID, TITLE, WORKDIR
from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.ids import SEARCHED_MAX, whole_id
from turnkeeper.cli.output import json_option, moment, one_line, print_json, print_table, say

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient
    from turnkeeper.wire.public import Conversation

Connect = Callable[[], AbstractContextManager["OwnerClient"]]


@click.group(epilog="Example: turnkeeper conversations list")
def conversations() -> None:
    """List, show, create and close conversations."""


@conversations.command("list", epilog="Example: turnkeeper conversations list --limit 20 --json")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@json_option
@connection_options
def list_(connect: Connect, limit: int, as_json: bool) -> None:
    """List conversations, the newest first."""
    with connect() as client:
        found = client.conversations(limit)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.thread_id,
            one.agent,
            one.state,
            one.workdir,
            str(one.native_turn),
            moment(one.updated_at),
            one_line(one.title),
        )
        for one in found
    ]
    print_table(
        ("thread", "agent", "state", "workdir", "turns", "updated", "title"),
        rows,
        empty='no conversation yet; start one: turnkeeper chat --agent scripted "hello"',
        spare=("workdir", "updated", "turns", "agent"),
        folding=("title",),
    )


@conversations.command(epilog="Example: turnkeeper conversations show 0193e2a4-7c1e-7b55-8f00-0d6f7a1b2c3d")
@click.argument("thread", type=THREAD_ID)
@json_option
@connection_options
def show(connect: Connect, thread: str, as_json: bool) -> None:
    """Show one conversation."""
    with connect() as client:
        _print(client.conversation(whole_thread(client, thread)), as_json)


@conversations.command(epilog="Example: turnkeeper conversations create --agent scripted --workdir projects/site")
@click.option("--agent", type=AGENT_NAME, required=True, help="Name of an agent definition (turnkeeper agents list).")
@click.option(
    "--workdir", type=WORKDIR, default=None, help="Relative directory in the owner workspace; default: a fresh one."
)
@click.option("--title", type=TITLE, default="", help="For people.")
@json_option
@connection_options
def create(connect: Connect, agent: str, workdir: str | None, title: str, as_json: bool) -> None:
    """Create a conversation with an agent."""
    with connect() as client:
        _print(begin(client, agent, workdir, title), as_json)


def begin(client: "OwnerClient", agent: str, workdir: str | None, title: str = "") -> "Conversation":
    """A new conversation. An agent that cannot run here is refused, with what it lacks: its first turn could only fail."""
    from turnkeeper.client.failures import ClientError
    from turnkeeper.domain.errors import ProblemCode
    from turnkeeper.kit.ids import new_id
    from turnkeeper.wire.public import NewConversation

    known = next((one for one in client.agents() if one.name == agent), None)
    if known is not None and not known.available:
        install = f"; install it with: {known.install}" if known.install else ""
        raise click.ClickException(f"agent {agent} cannot run here: {known.unavailable}{install}")
    new = NewConversation(agent=agent, workdir=workdir, title=title)
    try:
        return client.create_conversation(new, idempotency_key=new_id())
    except ClientError as error:
        if error.code == ProblemCode.UNKNOWN_AGENT:
            error.add_note("`turnkeeper agents list` shows it")
        raise


@conversations.command(epilog="Example: turnkeeper conversations close 0193e2a4-7c1e-7b55-8f00-0d6f7a1b2c3d")
@click.argument("thread", type=THREAD_ID)
@json_option
@connection_options
def close(connect: Connect, thread: str, as_json: bool) -> None:
    """Close a conversation: what waits ends, what runs is cancelled, no message is taken any more."""
    with connect() as client:
        _print(client.close_conversation(whole_thread(client, thread)), as_json)


def whole_thread(client: "OwnerClient", given: str) -> str:
    """The id of the conversation that `given` begins."""
    return whole_id(given, "conversation", lambda: (one.thread_id for one in client.conversations(SEARCHED_MAX)))


def _print(one: "Conversation", as_json: bool) -> None:
    if as_json:
        print_json(one)
        return
    say(f"conversation  {one.thread_id}")
    say(f"agent         {one.agent}")
    say(f"state         {one.state}{' (queue paused)' if one.queue_paused else ''}")
    say(f"workdir       {one.workdir}")
    say(f"turns         {one.native_turn} settled, workspace epoch {one.epoch}")
    say(f"created       {moment(one.created_at)}")
    say(f"updated       {moment(one.updated_at)}")
    if one.live_run_id:
        say(f"live run      {one.live_run_id}")
    if one.title:
        say(f"title         {one_line(one.title, 200)}")
    if one.lost_text:
        say(one.lost_text)
