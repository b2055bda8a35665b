"""`turnkeeper doctor`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.arguments import DIRECTORY, GIVEN
from turnkeeper.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from turnkeeper.domain.history import Finding
    from turnkeeper.services.doctor import Examined

LOCAL_UP = "the data directory"


@click.command(epilog="Example: turnkeeper doctor --data ./turnkeeper-data")
@click.option(
    "--database",
    metavar="URL",
    type=GIVEN,
    default=None,
    help="PostgreSQL URL; default: DATABASE_URL, else that of a local `up`.",
)
@click.option(
    "--data",
    type=DIRECTORY,
    default=None,
    help="Data directory of a local `turnkeeper up` that runs; default: TURNKEEPER_DATA, else the usual one.",
)
@json_option
def doctor(database: str | None, data: Path | None, as_json: bool) -> int:
    """Hold what the database records against the product's rules, and say what breaks them.

    Reads only, beside whatever runs. One line per finding, then a summary; exit status 1 if there is a finding.
    Set TURNKEEPER_TREES_PER_OWNER as the control plane has it: by it is judged who waits for room.
    """
    if database and data:
        raise click.UsageError("--database and --data name two databases; give one of them")
    dsn, named = _dsn(database, data)
    from turnkeeper.main.doctor import examine_database

    findings: list[Finding] = []

    def report(finding: "Finding") -> None:
        if as_json:
            findings.append(finding)
        else:
            say(str(finding))

    examined = examine_database(dsn, report, named=named, of_local_up=named == LOCAL_UP)
    if as_json:
        print_json(
            {
                "findings": [{"rule": one.rule, "subject": one.subject, "text": one.text} for one in findings],
                "scopes": examined.scopes,
                "runs": examined.runs,
            }
        )
    else:
        say(_summary(examined))
    return 1 if examined.findings else 0


def _dsn(database: str | None, data: Path | None) -> tuple[str, str]:
    """The database, and by what it was given: an option, a variable, or `LOCAL_UP`.

    What is named in the command wins over the environment, and a DATABASE_URL over a local `up`, as in `up` itself.
    """
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


def _summary(examined: "Examined") -> str:
    looked_at = f"{_count(examined.scopes, 'scope')} and {_count(examined.runs, 'run')} looked at"
    return f"{looked_at}: " + (_count(examined.findings, "finding") if examined.findings else "no finding")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
