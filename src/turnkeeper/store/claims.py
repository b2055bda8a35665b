"""What a claim looks at before it takes anything, in one statement: every turn waits for it."""

from dataclasses import dataclass

from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.store.durability import CLUSTER_MATCHES
from turnkeeper.store.hosts import HostRow
from turnkeeper.store.tx import Reader


@dataclass(frozen=True)
class ClaimFacts:
    """`cluster_matches`: the database is the recorded one (D-04). `claimed_before`: the attempt that this claim id got from
    this host process (D-05). `host` None: it was never heard. `trees`: the distinct roots among its open attempts."""

    cluster_matches: bool
    claimed_before: str | None
    host: HostRow | None
    trees: list[str]


async def claim_facts(reader: Reader, *, host: str, incarnation: str, claim_id: str) -> ClaimFacts:
    """Read without a lock: what is decided by them is looked at again under the host's row, or by the statement that writes."""
    row = await reader.fetch_one(
        f"SELECT ({CLUSTER_MATCHES}) IS TRUE AS cluster_matches, "  # noqa: S608 - literal parts
        "(SELECT id FROM attempts WHERE host = %(host)s AND incarnation = %(incarnation)s AND claim_id = %(claim)s) "
        "AS claimed_before, "
        "ARRAY(SELECT DISTINCT root_run_id::text FROM attempts WHERE host = %(host)s AND ended_at IS NULL) AS trees, "
        "h.name, h.incarnation, h.capacity, h.provisioner, h.state, h.launch_error, h.earlier_incarnations "
        "FROM (SELECT 1) one LEFT JOIN hosts h ON h.name = %(host)s",
        {"host": host, "incarnation": incarnation, "claim": claim_id},
    )
    if row is None:
        raise InvariantViolation("one row was asked for")
    facts = {name: row.pop(name) for name in ("cluster_matches", "claimed_before", "trees")}
    return ClaimFacts(**facts, host=None if row["name"] is None else HostRow(**row))
