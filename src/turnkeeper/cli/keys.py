"""`turnkeeper keys`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.arguments import KEY_ID, KEY_NAME, USER_NAME
from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.handover import require_output, shown_once
from turnkeeper.cli.ids import whole_id
from turnkeeper.cli.output import json_option, moment, print_json, print_table, say

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient

Connect = Callable[[], AbstractContextManager["OwnerClient"]]


@click.group(epilog="Example: turnkeeper keys create laptop")
def keys() -> None:
    """Create, list and revoke API keys."""


@keys.command(epilog="Example: turnkeeper keys create laptop")
@click.argument("name", type=KEY_NAME)
@click.option("--user", type=USER_NAME, default=None, help="A key of this user (name or uid); for administrators.")
@json_option
@connection_options
def create(connect: Connect, name: str, user: str | None, as_json: bool) -> None:
    """Create a key. It is shown once."""
    from turnkeeper.cli.users import user_named
    from turnkeeper.kit.ids import new_id

    require_output()
    with connect() as client:
        if user is None:
            key = client.create_key(name, idempotency_key=new_id())
            made, again = f"the key {key.id} was created", f"revoke it (turnkeeper keys revoke {key.id})"
        else:
            whose = user_named(client, user)
            key = client.create_key_of(whose.uid, name, idempotency_key=new_id())
            made, again = f"the key {key.id} of user {whose.name} was created", f"{whose.name} can revoke it"
    with shown_once(made, f"{again}, and create another one"):
        if as_json:
            print_json(key)
        else:
            say(key.key)


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
@click.argument("key_id", metavar="KEY", type=KEY_ID)
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
        say(f"revoked {key_id}")
