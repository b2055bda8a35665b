"""`turnkeeper agents`."""

import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient

Connect = Callable[[], AbstractContextManager["OwnerClient"]]


@click.group(epilog="Example: turnkeeper agents list")
def agents() -> None:
    """List, show, add and remove agent definitions."""


@agents.command("list", epilog="Example: turnkeeper agents list --json")
@json_option
@connection_options
def list_(connect: Connect, as_json: bool) -> None:
    """List agents; one whose command is missing on the machine is shown with the command that installs it."""
    with connect() as client:
        found = client.agents()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.name,
            one.title,
            one.network,
            one.runtime_policy,
            "yes"
            if one.available
            else f"no: {one.unavailable or ''}{f' — install: {one.install}' if one.install else ''}",
        )
        for one in found
    ]
    print_table(
        ("agent", "title", "network", "policy", "available"),
        rows,
        empty="no agent yet; add one: turnkeeper agents add FILE",
    )


@agents.command(epilog="Example: turnkeeper agents show scripted")
@click.argument("name")
@json_option
@connection_options
def show(connect: Connect, name: str, as_json: bool) -> None:
    """Show one definition."""
    with connect() as client:
        one = client.agent(name)
    if as_json:
        print_json(one)
        return
    say(f"agent      {one.name} ({one.title})")
    say(f"available  {'yes' if one.available else f'no: {one.unavailable}'}")
    if one.install:
        say(f"install    {one.install}")
    for field, value in (one.definition or {}).items():
        if value not in (None, [], {}, ""):
            say(f"  {field} = {value}")


@agents.command(epilog="Example: turnkeeper agents add my-agent.toml")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@connection_options
def add(connect: Connect, file: Path, as_json: bool) -> None:
    """Add the definition in FILE (TOML), or replace the one of its name."""
    try:
        definition = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} is not TOML: {error}") from error
    name = definition.get("name")
    if not isinstance(name, str):
        raise click.ClickException(f'{file}: `name` is {name!r}; a definition has a name, such as name = "my-agent"')
    with connect() as client:
        one = client.put_agent(name, definition)
    if as_json:
        print_json(one)
    else:
        say(f"added {one.name}" + ("" if one.available else f" (unavailable here: {one.unavailable})"))


@agents.command(epilog="Example: turnkeeper agents remove my-agent")
@click.argument("name")
@json_option
@connection_options
def remove(connect: Connect, name: str, as_json: bool) -> None:
    """Remove a definition: no new conversation can use it."""
    with connect() as client:
        client.remove_agent(name)
    if as_json:
        print_json({"removed": name})
    else:
        say(f"removed {name}")
