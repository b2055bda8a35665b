"""Whether a database may carry the product's promises (D-04), and whether it is still the same one.

An admission that was confirmed and then forgotten by a crash would let a prompt be sent twice. So a server that may
forget commits is refused at the start, and after a fail-over, where an asynchronous standby may lack the last commits,
claims are refused until an operator has run the recovery (protocol, section 7).
"""

from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg

from turnkeeper.kit.log import get_logger
from turnkeeper.store.errors import DatabaseRefused
from turnkeeper.store.tx import Database, Reader, Tx

SERVER_VERSION_MIN: Final = 15

_log = get_logger("store.durability")

# The timeline that is written now. pg_control_checkpoint() names that of the last checkpoint, which after a promotion is
# for a while still the old one; and a standby writes none.
_TIMELINE: LiteralString = "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint"

CLUSTER_MATCHES: Final[LiteralString] = (
    f"SELECT c.system_identifier = s.system_identifier::text AND c.timeline = {_TIMELINE} "  # noqa: S608 - literal parts
    "FROM cluster c, pg_control_system() s"
)
"""Whether the server is the one whose identity is stored. Cheap: every claim asks it."""

_SERVER_FACTS: LiteralString = (
    "SELECT current_setting('server_version_num')::int AS version_num, pg_is_in_recovery() AS standby, "
    "current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit, "
    "current_setting('full_page_writes') AS full_page_writes"
)


@dataclass(frozen=True)
class ServerFacts:
    """What the server says of itself, as effective in our own sessions."""

    version_num: int
    standby: bool
    fsync: str
    synchronous_commit: str
    full_page_writes: str


@dataclass(frozen=True)
class Cluster:
    """The identity of a database: which one, and how many promotions it has seen."""

    system_identifier: str
    timeline: int


def refusal(facts: ServerFacts, place: str) -> str | None:
    """Why the product must not run on such a server, in one line; None if it may."""
    if facts.version_num < SERVER_VERSION_MIN * 10_000:
        return f"{place} is PostgreSQL {facts.version_num // 10_000}; at least {SERVER_VERSION_MIN} is needed"
    if facts.standby:
        return f"{place} is a standby (in recovery); the primary is needed"
    for name, value in (("fsync", facts.fsync), ("synchronous_commit", facts.synchronous_commit)):
        if value == "off":
            return f"{place} has {name} = off and may forget what it confirmed; set {name} = on"
    return None


async def check_start(database: Database) -> None:
    """Raise `DatabaseRefused` if the server is too old, a standby, or not durable."""

    async def look(reader: Reader) -> ServerFacts | None:
        return await reader.fetch_one(_SERVER_FACTS, as_=ServerFacts)

    facts = await database.read("start.server", look)
    line = refusal(facts, database.place) if facts is not None else f"{database.place} says nothing about itself"
    if line is not None:
        raise DatabaseRefused(line)
    if facts is not None and facts.full_page_writes == "off":
        _log.warning("database_full_page_writes_off", place=database.place)


def require_durable(connection: psycopg.Connection[Any], place: str) -> None:
    """As `check_start`, on one connection: what changes the schema asks this before it changes anything."""
    row = connection.execute(_SERVER_FACTS).fetchone()
    line = refusal(ServerFacts(*row), place) if row is not None else f"{place} says nothing about itself"
    if line is not None:
        raise DatabaseRefused(line)


async def record_cluster(database: Database) -> bool:
    """Store the database's identity at the very first start. Whether the stored one is the server's: if not, claims are refused."""

    async def work(tx: Tx) -> bool:
        await tx.execute(
            f"INSERT INTO cluster (system_identifier, timeline) "  # noqa: S608 - literal parts
            f"SELECT system_identifier::text, {_TIMELINE} FROM pg_control_system() ON CONFLICT DO NOTHING"
        )
        return await cluster_matches(tx)

    matches = await database.run("start.cluster", work)
    if not matches:
        _log.error("database_cluster_changed", place=database.place)
    return matches


async def cluster_matches(reader: Reader) -> bool:
    """As `CLUSTER_MATCHES`; no stored identity is no match."""
    return await reader.fetch_value(CLUSTER_MATCHES) is True


async def server_cluster(reader: Reader) -> Cluster:
    """The identity of the server itself."""
    row = await reader.fetch_one(
        f"SELECT system_identifier::text, {_TIMELINE} AS timeline FROM pg_control_system()",  # noqa: S608 - literal parts
        as_=Cluster,
    )
    if row is None:
        raise DatabaseRefused("the server does not tell its system identifier")
    return row


async def stored_cluster(reader: Reader) -> Cluster | None:
    """The identity that claims are checked against; None before the first start."""
    return await reader.fetch_one("SELECT system_identifier, timeline FROM cluster", as_=Cluster)
