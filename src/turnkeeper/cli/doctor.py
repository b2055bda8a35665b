"""`turnkeeper doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnkeeper.cli.databases import LOCAL_UP, database_of, database_or_local_up
from turnkeeper.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from turnkeeper.domain.history import Finding
    from turnkeeper.services.doctor import Examined


@click.command(epilog="Example: turnkeeper doctor --data ./turnkeeper-data")
@database_or_local_up
@json_option
def doctor(database: str | None, data: Path | None, as_json: bool) -> int:
    """Hold what the database records against the product's rules, and say what breaks them.

    Reads only, beside whatever runs. One line per finding, then a summary; exit status 1 if there is a finding.
    Set TURNKEEPER_TREES_PER_OWNER as the control plane has it: by it is judged who waits for room.
    """
    dsn, named = database_of(database, data)
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


def _summary(examined: "Examined") -> str:
    looked_at = f"{_count(examined.scopes, 'scope')} and {_count(examined.runs, 'run')} looked at"
    return f"{looked_at}: " + (_count(examined.findings, "finding") if examined.findings else "no finding")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
