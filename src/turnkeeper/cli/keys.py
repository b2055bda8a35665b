"""`turnkeeper keys`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.ids import whole_id
from turnkeeper.cli.output import json_option, moment, print_json, print_table

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient

Connect = Callable[[], AbstractContextManager["OwnerClient"]]


@click.group(epilog="Example: turnkeeper keys create laptop")
def keys() -> None:
    """Create, list and revoke API keys."""


@keys.command(epilog="Example: turnkeeper keys create laptop")
@click.argument("name")
@json_option
@connection_options
def create(connect: Connect, name: str, as_json: bool) -> None:
    """Create a key. It is shown once."""
    from turnkeeper.kit.ids import new_id

    with connect() as client:
        key = client.create_key(name, idempotency_key=new_id())
    if as_json:
        print_json(key)
    else:
        click.echo(key.key)


@keys.command("list", epilog="Example: turnkeeper keys list")
@json_option
@connection_options
def list_(connect: Connect, as_json: bool) -> None:
    """List your keys."""
    with connect() as client:
        found = client.keys()
    if as_json:
        print_json(found)
        return
    rows = [
        (one.id, one.name, one.shown_prefix, moment(one.created_at), moment(one.last_used_at), moment(one.revoked_at))
        for one in found
    ]
    print_table(
        ("key", "name", "begins with", "created", "last used", "revoked"),
        rows,
        empty="no key yet",
        spare=("revoked", "last used", "created"),
    )


@keys.command(epilog="Example: turnkeeper keys revoke 0193e2a4-7c1e-7b55-8f00-0d6f7a1b2c3d")
@click.argument("key_id", metavar="KEY")
@click.option("--yes", is_flag=True, help="Also the key that this command itself uses.")
@json_option
@connection_options
def revoke(connect: Connect, key_id: str, yes: bool, as_json: bool) -> None:
    """Revoke a key (its id): it opens nothing any more."""
    with connect() as client:
        own = client.keys()
        key_id = whole_id(key_id, "key", lambda: (one.id for one in own))
        if not yes and any(one.id == key_id and client.is_in_use(one) for one in own):
            raise click.ClickException(
                f"{key_id} is the key that this command uses: create another one first (turnkeeper keys create NAME), "
                "or revoke it with --yes; a local `turnkeeper up` makes itself a new one at its next start"
            )
        client.revoke_key(key_id)
    if as_json:
        print_json({"revoked": key_id})
    else:
        click.echo(f"revoked {key_id}")
