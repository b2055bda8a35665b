"""`turnkeeper users` (for administrators) and `turnkeeper login`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.arguments import USER_NAME
from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.handover import require_output, shown_once
from turnkeeper.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient
    from turnkeeper.wire.public import Me

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
@click.argument("name", type=USER_NAME)
@click.option("--admin", is_flag=True, help="An administrator: users, hosts and agent definitions.")
@click.option("--language", default="en", show_default=True, type=click.Choice(["en", "zh"]), help="Of the page.")
@json_option
@connection_options
def add(connect: Connect, name: str, admin: bool, language: str, as_json: bool) -> None:
    """Add a user. Its API key and a link that opens the page are shown once: hand them over."""
    from turnkeeper.client.failures import CallError
    from turnkeeper.kit.ids import new_id
    from turnkeeper.wire.public import NewUser

    require_output()

    new = NewUser.model_validate({"name": name, "role": "admin" if admin else "owner", "language": language})
    with connect() as client:
        user = client.create_user(new, idempotency_key=new_id())
        again = (
            f"`turnkeeper keys create NAME --user {user.name}` makes another key, "
            f"`turnkeeper login --user {user.name}` another link"
        )
        try:
            key = client.create_key_of(user.uid, "first key", idempotency_key=new_id()).key
            link = client.login_link_of(user.uid)
        except CallError as error:
            raise click.ClickException(
                f"user {user.name} was created, but not both its key and its link ({error}): {again}"
            ) from error
    with shown_once(f"user {user.name} was created with a key and a link", again):
        if as_json:
            print_json({**user.model_dump(mode="json"), "key": key, "link": link})
            return
        say(f"user  {user.name} ({user.role})")
        say(f"key   {key}   (shown once; for TURNKEEPER_API_KEY)")
        say(f"link  {link}   (opens the page once, within a day)")


def user_named(client: "OwnerClient", given: str) -> "Me":
    """The user with this name or uid."""
    found = next((one for one in client.users() if given in (one.name, one.uid)), None)
    if found is None:
        raise click.ClickException(f"there is no user {given}; `turnkeeper users list` lists them")
    return found


@click.command(epilog="Example: turnkeeper login")
@click.option("--user", type=USER_NAME, default=None, help="As this user (name or uid); for administrators.")
@json_option
@connection_options
def login(connect: Connect, user: str | None, as_json: bool) -> None:
    """Print a fresh link to the page. It opens once, within a day, as the user of the key in use."""
    require_output()
    with connect() as client:
        link = client.login_link() if user is None else client.login_link_of(user_named(client, user).uid)
    with shown_once("a link was made", "it ends by itself within a day; make another one"):
        if as_json:
            print_json({"link": link})
        else:
            say(link)
