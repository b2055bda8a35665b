"""`turnkeeper doctor`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from turnkeeper.domain.history import Finding
    from turnkeeper.services.doctor import Examined


@click.command(epilog="Example: turnkeeper doctor --data ./turnkeeper-data")
@click.option(
    "--database", metavar="URL", default=None, help="PostgreSQL URL; default: DATABASE_URL, else that of a local `up`."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
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
    dsn, of_local_up = _dsn(database, data)
    from turnkeeper.main.doctor import examine_database

    findings: list[Finding] = []

    def report(finding: "Finding") -> None:
        if as_json:
            findings.append(finding)
        else:
            say(str(finding))

    examined = examine_database(dsn, report, of_local_up=of_local_up)
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


def _dsn(database: str | None, data: Path | None) -> tuple[str, bool]:
    """The database, and whether it is that of a local `up`.

    What is named in the command wins over the environment, and a DATABASE_URL over a local `up`, as in `up` itself.
    """
    from_environment = None if data else os.environ.get("DATABASE_URL")
    given = database or from_environment
    if given:
        return given, False
    from turnkeeper.main.paths import DataDirectory, default_data_directory

    directory = DataDirectory((data or default_data_directory()).absolute())
    if directory.postgres.is_dir():
        from turnkeeper.main.doctor import local_dsn

        return local_dsn(directory), True
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
