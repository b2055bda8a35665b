"""`turnkeeper agents`."""

import os
import tomllib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from turnkeeper.cli.arguments import AGENT_NAME
from turnkeeper.cli.connection import connection_options
from turnkeeper.cli.output import json_option, one_line, print_json, print_table, say, visible
from turnkeeper.cli.toml_text import toml_of

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient
    from turnkeeper.wire.public import Agent

Connect = Callable[[], AbstractContextManager["OwnerClient"]]
COMMENT_MAX = 2000


@click.group(epilog="Example: turnkeeper agents list")
def agents() -> None:
    """List, show, add, reset and remove agent definitions."""


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
            "yes" if one.available else f"no: {one.unavailable or ''}",
        )
        for one in found
    ]
    print_table(
        ("agent", "title", "network", "policy", "available"),
        rows,
        empty="no agent yet; add one: turnkeeper agents add FILE",
        spare=("policy", "network", "title"),
        folding=("available",),
    )
    missing = [one for one in found if one.install]
    if missing:
        say("To install what is missing, on the machine of the sandboxes:")
    for one in missing:
        say(f"  {one.name}: {one.install}")


@agents.command(epilog="Example: turnkeeper agents show scripted")
@click.argument("name", type=AGENT_NAME)
@json_option
@connection_options
def show(connect: Connect, name: str, as_json: bool) -> None:
    """Show one definition, as TOML that `agents add` takes."""
    with connect() as client:
        one = client.agent(name)
    if as_json:
        print_json(one)
        return
    # one line each: a second one would be no comment
    say(f"# {'available' if one.available else one_line(f'unavailable: {one.unavailable}', COMMENT_MAX)}")
    if one.install:
        say(f"# install with: {one_line(one.install, COMMENT_MAX)}")
    say(toml_of(one.definition or {}))


@agents.command(epilog="Example: turnkeeper agents add my-agent.toml")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@connection_options
def add(connect: Connect, file: Path, as_json: bool) -> None:
    """Add the definition in FILE (TOML), or replace the one of its name."""
    try:
        definition = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read ({os.strerror(error.errno or 0)})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} is not TOML: {error}") from error
    name = definition.get("name")
    if not isinstance(name, str) or AGENT_NAME.fault(name) is not None:  # no address to send it to
        from turnkeeper.domain.agent import parse_definition

        found = parse_definition(definition)
        raise _no_definition(str(file), found if isinstance(found, list) else [])
    with connect() as client:
        known = any(one.name == name for one in client.agents())
        one = _put(client, name, definition, str(file))
    _tell(one, "replaced" if known else "added", as_json)


@agents.command(epilog="Example: turnkeeper agents reset opencode")
@click.argument("name", type=AGENT_NAME)
@json_option
@connection_options
def reset(connect: Connect, name: str, as_json: bool) -> None:
    """Bring back the definition that comes with this version, after it was replaced or removed."""
    from importlib import resources

    files = resources.files("turnkeeper.agents").joinpath("definitions").iterdir()
    texts = {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}
    if name not in texts:
        raise click.ClickException(
            f"no definition of {name!r} comes with this version; there is {', '.join(sorted(texts))}"
        )
    with connect() as client:
        one = _put(client, name, tomllib.loads(texts[name].read_text()), name)
    _tell(one, "reset", as_json)


def _put(client: "OwnerClient", name: str, definition: dict[str, Any], source: str) -> "Agent":
    """Every complaint about a definition, one a line."""
    from turnkeeper.client.failures import ClientError

    try:
        return client.put_agent(name, definition)
    except ClientError as error:
        complaints = error.extra.get("complaints")
        if not isinstance(complaints, list):
            raise
        raise _no_definition(source, cast("list[object]", complaints)) from error


def _no_definition(source: str, complaints: Sequence[object]) -> click.ClickException:
    lines = "".join(f"\n  {visible(str(line))}" for line in complaints)
    return click.ClickException(f"{source} is no agent definition:{lines}")


def _tell(one: "Agent", done: str, as_json: bool) -> None:
    if as_json:
        print_json(one)
        return
    install = f"; install it with: {one.install}" if one.install else ""
    say(f"{done} {one.name}" + ("" if one.available else f" (unavailable here: {one.unavailable}{install})"))


@agents.command(epilog="Example: turnkeeper agents remove my-agent")
@click.argument("name", type=AGENT_NAME)
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
