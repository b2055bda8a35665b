"""`turnkeeper db`."""

import os
from pathlib import Path

import click

from turnkeeper.cli.arguments import GIVEN
from turnkeeper.cli.databases import LOCAL_UP, database_of, database_or_local_up
from turnkeeper.cli.output import json_option, print_json, say


def _dsn(given: str | None) -> tuple[str, str]:
    """The connection string, and by what it was given."""
    if given is not None:
        return given, "--database"
    dsn = os.environ.get("DATABASE_URL")
    if not dsn:
        raise click.UsageError(
            "no database: set DATABASE_URL or give --database (`turnkeeper up` brings its own and upgrades it)"
        )
    return dsn, "DATABASE_URL"


database_option = click.option(
    "--database", metavar="URL", type=GIVEN, default=None, help="PostgreSQL URL; default: DATABASE_URL."
)


@click.group(epilog="Example: DATABASE_URL=postgresql://tk@db/tk turnkeeper db check")
def db() -> None:
    """Upgrade or check the database."""


@db.command(epilog="Example: DATABASE_URL=postgresql://tk@db/tk turnkeeper db upgrade")
@database_option
@json_option
def upgrade(database: str | None, as_json: bool) -> None:
    """Bring the schema to this release. Running it again changes nothing."""
    dsn, named = _dsn(database)
    from turnkeeper.main.database import upgrade_database

    revision = upgrade_database(dsn, named)
    if as_json:
        print_json({"revision": revision})
    else:
        say(f"schema revision {revision}")


@db.command(epilog="Example: DATABASE_URL=postgresql://tk@db/tk turnkeeper db check --json")
@database_or_local_up
@json_option
def check(database: str | None, data: Path | None, as_json: bool) -> int:
    """Say whether the product would start on this database: version, durability, schema. Exit status 1 if not."""
    dsn, named = database_of(database, data)
    from turnkeeper.main.database import check_database

    findings = check_database(dsn, named, of_local_up=named == LOCAL_UP)
    if as_json:
        print_json({"ok": not findings, "findings": findings})
    else:
        for line in findings:
            say(line)
        if not findings:
            say("ok")
    return 1 if findings else 0
