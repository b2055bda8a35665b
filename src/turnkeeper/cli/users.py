"""`turnkeeper users` (for administrators) and `turnkeeper login`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient

Connect = Callable[[], AbstractContextManager["OwnerClient"]]


@click.group(epilog="Example: turnkeeper users add lin")
def users() -> None:
    """List users, and add one with a key and a link to the page."""


@users.command("list", epilog="Example: turnkeeper users list")
@json_option
@connection_options
def list_(connect: Connect, as_json: bool) -> None:
    """List the users."""
    with connect() as client:
        found = client.users()
    if as_json:
        print_json(found)
        return
    print_table(
        ("user", "role", "language", "uid"),
        [(one.name, one.role, one.language, one.uid) for one in found],
        empty="no user",
    )


@users.command(epilog="Example: turnkeeper users add lin --language zh")
@click.argument("name")
@click.option("--admin", is_flag=True, help="An administrator: users, hosts and agent definitions.")
@click.option("--language", default="en", show_default=True, type=click.Choice(["en", "zh"]), help="Of the page.")
@json_option
@connection_options
def add(connect: Connect, name: str, admin: bool, language: str, as_json: bool) -> None:
    """Add a user. Its API key and a link that opens the page are shown once: hand them over."""
    from turnkeeper.kit.ids import new_id
    from turnkeeper.wire.public import NewUser

    new = NewUser.model_validate({"name": name, "role": "admin" if admin else "owner", "language": language})
    with connect() as client:
        user = client.create_user(new, idempotency_key=new_id())
        key = client.create_key_of(user.uid, "first key", idempotency_key=new_id()).key
        link = client.login_link_of(user.uid)
    if as_json:
        print_json({**user.model_dump(mode="json"), "key": key, "link": link})
        return
    click.echo(f"user  {user.name} ({user.role})")
    click.echo(f"key   {key}   (shown once; for TURNKEEPER_API_KEY)")
    click.echo(f"link  {link}   (opens the page once, within a day)")


@click.command(epilog="Example: turnkeeper login")
@json_option
@connection_options
def login(connect: Connect, as_json: bool) -> None:
    """Print a fresh link to the page. It opens once, within a day, as the user of the key in use."""
    with connect() as client:
        link = client.login_link()
    if as_json:
        print_json({"link": link})
    else:
        click.echo(link)
