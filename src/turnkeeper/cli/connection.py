"""Which control plane a command speaks to, as whom, and how a refusal becomes one line."""

import contextlib
import os
from collections.abc import Callable, Generator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from turnkeeper.cli.arguments import DIRECTORY
from turnkeeper.cli.output import one_line

if TYPE_CHECKING:
    from turnkeeper.client.owner import OwnerClient

DEFAULT_URL = "http://127.0.0.1:8420"
DETAIL_MAX = 1000


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--url` and `--data`; the command gets `connect`, which opens the client."""

    @click.option(
        "--url", envvar="TURNKEEPER_URL", default=DEFAULT_URL, show_default=True, help="Address of the control plane."
    )
    @click.option(
        "--data",
        envvar="TURNKEEPER_DATA",
        type=DIRECTORY,
        default=None,
        help="Data directory of a local `turnkeeper up`, whose key is used unless TURNKEEPER_API_KEY is set.",
    )
    @wraps(command)
    def with_connection(*args: Any, url: str, data: Path | None, **kwargs: Any) -> Any:
        source = click.get_current_context().get_parameter_source("url")
        named = "TURNKEEPER_URL" if source is ParameterSource.ENVIRONMENT else "--url"
        return command(*args, connect=lambda: connect(url, data, url_named=named), **kwargs)

    return with_connection


@contextlib.contextmanager
def connect(url: str, data: Path | None, *, url_named: str = "--url") -> Generator["OwnerClient"]:
    """A client with the key of the environment, or else of the local data directory.

    Its failures end the command with one line, in which an error's notes say what became of what was asked for.
    """
    from turnkeeper.client.http import ClientError, ConnectionFailed
    from turnkeeper.client.owner import OwnerClient

    try:
        key, source = key_and_source(data)
        client = OwnerClient(url, key)
    except ValueError as error:
        raise click.UsageError(f"{url_named}: {error}") from error
    with client:
        try:
            yield client
        except ClientError as error:
            line = one_line(error.detail, DETAIL_MAX) or f"{error.code} ({error.status})"
            line += f" (the key of {source})" if error.status == 401 else ""
            raise click.ClickException("; ".join((line, *_notes(error)))) from error
        except ConnectionFailed as error:
            known = _notes(error) or ["is `turnkeeper up` running, and is --url or TURNKEEPER_URL right?"]
            raise click.ClickException(
                f"no answer from the control plane at {url} ({error.kind}): {'; '.join(known)}"
            ) from error


def _notes(error: Exception) -> list[str]:
    return getattr(error, "__notes__", [])


def key_and_source(data: Path | None) -> tuple[str, str]:
    """`TURNKEEPER_API_KEY`, else the first owner's key that `turnkeeper up` keeps in its data directory; and which it was."""
    given = os.environ.get("TURNKEEPER_API_KEY", "").strip()
    if given:
        return _sendable(given, "TURNKEEPER_API_KEY"), "TURNKEEPER_API_KEY"
    from turnkeeper.main.paths import DataDirectory, default_data_directory

    file = DataDirectory(data or default_data_directory()).owner_key
    try:
        return _sendable(file.read_text().strip(), str(file)), str(file)
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file} holds no API key, which is one word of printable letters") from error
    except OSError as error:
        raise click.ClickException(
            f"no API key: TURNKEEPER_API_KEY is not set and {file} cannot be read "
            f"({os.strerror(error.errno or 0)}); start `turnkeeper up`, or give --data of the one that runs"
        ) from error


def _sendable(key: str, source: str) -> str:
    """`key`, which goes into a header. The key itself is never shown."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise click.ClickException(f"{source} holds no API key, which is one word of printable letters")
    return key
