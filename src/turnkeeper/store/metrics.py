"""Numbers for `/metrics`, read by a few statements over partial indexes."""

from turnkeeper.store.tx import Reader


async def live_runs(reader: Reader) -> dict[str, int]:
    """Runs that are not ended, by status; `ready` counts those of the pending ones that may be claimed."""
    rows = await reader.fetch_all(
        "SELECT status, count(*) AS n, count(ready_at) AS ready FROM runs "
        "WHERE status IN ('pending', 'running', 'cancel_requested', 'recovering') GROUP BY status"
    )
    found = {row["status"]: int(row["n"]) for row in rows}
    found["ready"] = sum(int(row["ready"]) for row in rows)
    return found


async def oldest_ready_s(reader: Reader) -> float:
    """How long the run that has been ready for longest has waited; 0 without one."""
    return await reader.fetch_value(
        "SELECT coalesce(extract(epoch FROM tk_now() - min(ready_at)), 0)::float8 FROM runs WHERE ready_at IS NOT NULL"
    )


async def hosts_by_state(reader: Reader) -> dict[str, int]:
    """How many hosts are in which state."""
    rows = await reader.fetch_all("SELECT state, count(*) AS n FROM hosts GROUP BY state")
    return {row["state"]: int(row["n"]) for row in rows}


async def open_attempts(reader: Reader) -> int:
    """How many attempts are open."""
    return await reader.fetch_value("SELECT count(*) FROM attempts WHERE ended_at IS NULL")


async def quarantined_memberships(reader: Reader) -> int:
    """How many memberships wait for a verdict."""
    return await reader.fetch_value("SELECT count(*) FROM memberships WHERE state = 'quarantined'")


async def pending_cleanups(reader: Reader) -> int:
    """How many scopes have a cleanup fence up."""
    return await reader.fetch_value("SELECT count(DISTINCT runtime_scope_id) FROM runs WHERE runtime_cleanup_pending")
