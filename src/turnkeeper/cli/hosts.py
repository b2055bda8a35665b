"""`turnkeeper hosts`: for administrators."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.output import json_option, moment, print_json, print_table

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
@click.argument("name", metavar="HOST")
@json_option
@connection_options
def token(connect: Connect, name: str, as_json: bool) -> None:
    """Create a token for a host. It is shown once; the host reads it from TURNKEEPER_HOST_TOKEN_FILE."""
    from turnkeeper.kit.ids import new_id

    with connect() as client:
        made = client.create_host_token(name, idempotency_key=new_id())
    if as_json:
        print_json(made)
    else:
        click.echo(made.token)


@hosts.command(epilog="Example: turnkeeper hosts tokens second")
@click.argument("name", metavar="HOST")
@json_option
@connection_options
def tokens(connect: Connect, name: str, as_json: bool) -> None:
    """List a host's tokens (their ids, not the tokens themselves)."""
    with connect() as client:
        found = client.host_tokens(name)
    if as_json:
        print_json(found)
        return
    rows = [(one.id, moment(one.created_at), moment(one.revoked_at)) for one in found]
    print_table(("token", "created", "revoked"), rows, empty=f"host {name} has no token")


@hosts.command(epilog="Example: turnkeeper hosts revoke second")
@click.argument("name", metavar="HOST")
@click.argument("token_id", metavar="[TOKEN]", required=False)
@json_option
@connection_options
def revoke(connect: Connect, name: str, token_id: str | None, as_json: bool) -> None:
    """Revoke a host's tokens, or the one with the id TOKEN: it claims no more turns with it."""
    with connect() as client:
        if token_id is None:
            client.revoke_host_tokens(name)
        else:
            client.revoke_host_token(name, token_id)
        found = client.host_tokens(name)
    if as_json:
        print_json(found)
        return
    good = sum(one.revoked_at is None for one in found)
    click.echo(f"revoked; host {name} has {good} valid token{'' if good == 1 else 's'} left")
