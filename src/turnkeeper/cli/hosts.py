"""`turnkeeper hosts`: for administrators."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.arguments import HOST_NAME, TOKEN_ID
from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.handover import require_output, shown_once
from turnkeeper.cli.ids import whole_id
from turnkeeper.cli.output import json_option, moment, print_json, print_table, say

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient

Connect = Callable[[], AbstractContextManager["OwnerClient"]]


@click.group(epilog="Example: turnkeeper hosts token second")
def hosts() -> None:
    """List hosts, give them tokens, and take the tokens away."""


@hosts.command("list", epilog="Example: turnkeeper hosts list")
@json_option
@connection_options
def list_(connect: Connect, as_json: bool) -> None:
    """List the hosts that were heard."""
    with connect() as client:
        found = client.servers()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.name,
            one.state,
            f"{one.live_trees} of {one.capacity}",
            one.provisioner,
            one.version,
            moment(one.last_heartbeat_at),
            one.launch_error or "",
        )
        for one in found
    ]
    columns = ("host", "state", "trees", "provisioner", "version", "last heard", "error")
    print_table(columns, rows, empty="no host was heard yet")


@hosts.command(epilog="Example: turnkeeper hosts token second")
@click.argument("name", metavar="HOST", type=HOST_NAME)
@json_option
@connection_options
def token(connect: Connect, name: str, as_json: bool) -> None:
    """Create a token for a host. It is shown once; the host reads it from TURNKEEPER_HOST_TOKEN_FILE."""
    from turnkeeper.kit.ids import new_id

    require_output()
    with connect() as client:
        made = client.create_host_token(name, idempotency_key=new_id())
    again = f"revoke it (turnkeeper hosts revoke {name} {made.id}), and create another one"
    with shown_once(f"the token {made.id} of host {name} was created", again):
        if as_json:
            print_json(made)
        else:
            say(made.token)


@hosts.command(epilog="Example: turnkeeper hosts tokens second")
@click.argument("name", metavar="HOST", type=HOST_NAME)
@json_option
@connection_options
def tokens(connect: Connect, name: str, as_json: bool) -> None:
    """List a host's tokens (their ids, not the tokens themselves)."""
    with connect() as client:
        found = client.host_tokens(name)
        if not found and name not in {one.name for one in client.servers()}:
            raise _unknown(name)
    if as_json:
        print_json(found)
        return
    rows = [(one.id, moment(one.created_at), moment(one.revoked_at)) for one in found]
    print_table(("token", "created", "revoked"), rows, empty=f"host {name} has no token")


@hosts.command(epilog="Example: turnkeeper hosts revoke second")
@click.argument("name", metavar="HOST", type=HOST_NAME)
@click.argument("token_id", metavar="[TOKEN]", type=TOKEN_ID, required=False)
@json_option
@connection_options
def revoke(connect: Connect, name: str, token_id: str | None, as_json: bool) -> None:
    """Revoke a host's tokens, or the one with the id TOKEN: it claims no more turns with it."""
    with connect() as client:
        tokens = [one.id for one in client.host_tokens(name)]
        if not tokens:
            raise _unknown(name)
        if token_id is None:
            client.revoke_host_tokens(name)
        else:
            client.revoke_host_token(name, whole_id(token_id, "token", lambda: tokens))
        found = client.host_tokens(name)
    if as_json:
        print_json(found)
        return
    good = sum(one.revoked_at is None for one in found)
    say(f"revoked; host {name} has {good} valid token{'' if good == 1 else 's'} left")


def _unknown(name: str) -> click.ClickException:
    return click.ClickException(f"host {name} has no token, and never had one; `turnkeeper hosts list` lists the hosts")
