"""Which database a command is about: one that is named, or that of a local `turnkeeper up`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from turnkeeper.cli.arguments import DIRECTORY, GIVEN

F = TypeVar("F", bound=Callable[..., Any])
LOCAL_UP = "the data directory"


def database_or_local_up(command: F) -> F:
    """Adds `--database` and `--data`, of which `database_of` makes a database."""
    given = click.option(
        "--database",
        metavar="URL",
        type=GIVEN,
        default=None,
        help="PostgreSQL URL; default: DATABASE_URL, else that of a local `up`.",
    )
    local = click.option(
        "--data",
        type=DIRECTORY,
        default=None,
        help="Data directory of a local `turnkeeper up` that runs; default: TURNKEEPER_DATA, else the usual one.",
    )
    return given(local(command))


def database_of(database: str | None, data: Path | None) -> tuple[str, str]:
    """The database, and by what it was given: an option, a variable, or `LOCAL_UP`.

    What is named in the command wins over the environment, and a DATABASE_URL over a local `up`, as in `up` itself.
    """
    if database and data:
        raise click.UsageError("--database and --data name two databases; give one of them")
    if database is not None:
        return database, "--database"
    from_environment = os.environ.get("DATABASE_URL")
    if from_environment and data is None:
        return from_environment, "DATABASE_URL"
    from turnkeeper.main.paths import DataDirectory, default_data_directory

    directory = DataDirectory((data or default_data_directory()).absolute())
    if os.path.isdir(directory.postgres):  # noqa: PTH112 - of a name that no file system takes, `Path` raises
        from turnkeeper.main.doctor import local_dsn

        return local_dsn(directory), LOCAL_UP
    if data:
        raise click.UsageError(
            f"--data is {str(data)!r}; there is no data of a `turnkeeper up` with its own PostgreSQL"
        )
    raise click.UsageError("no database: set DATABASE_URL, or give --database or the --data of a local `turnkeeper up`")
