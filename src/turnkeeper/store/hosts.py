"""Hosts: who claims runs, and when it was last heard."""

from dataclasses import dataclass
from datetime import datetime

from turnkeeper.store.tx import Reader, Tx, jsonb


@dataclass(frozen=True)
class HostRow:
    """A row of `hosts`, for locks."""

    name: str
    incarnation: str
    capacity: int
    provisioner: str
    state: str
    launch_error: str | None
    earlier_incarnations: list[str]


@dataclass(frozen=True)
class HostView:
    """A host as operators see it."""

    name: str
    state: str
    launch_error: str | None
    version: str
    capacity: int
    live_trees: int
    provisioner: str
    last_heartbeat_at: datetime


async def get_host(reader: Reader, name: str) -> HostRow | None:
    """The row."""
    return await reader.fetch_one(
        "SELECT name, incarnation, capacity, provisioner, state, launch_error, earlier_incarnations FROM hosts "
        "WHERE name = %s",
        (name,),
        as_=HostRow,
    )


@dataclass(frozen=True)
class HostReport:
    """What a heartbeat says."""

    name: str
    incarnation: str
    version: str
    capacity: int
    labels: dict[str, str]
    provisioner: str
    state: str
    launch_error: str | None

    def params(self, **more: object) -> dict[str, object]:
        """The parameters of the two statements below."""
        return {**vars(self), "labels": jsonb(self.labels), **more}


async def insert_host(tx: Tx, report: HostReport) -> int:
    """A host's very first heartbeat. Zero: it was there, so lock it and update it."""
    return await tx.execute(
        "INSERT INTO hosts (name, incarnation, version, capacity, labels, provisioner, state, launch_error) "
        "VALUES (%(name)s, %(incarnation)s, %(version)s, %(capacity)s, %(labels)s, %(provisioner)s, %(state)s, "
        "%(launch_error)s) ON CONFLICT (name) DO NOTHING",
        report.params(),
    )


async def update_host(tx: Tx, report: HostReport, earlier: list[str]) -> int:
    """A later heartbeat, under the host's row lock."""
    return await tx.execute(
        "UPDATE hosts SET started_at = CASE WHEN incarnation = %(incarnation)s THEN started_at ELSE tk_now() END, "
        "incarnation = %(incarnation)s, earlier_incarnations = %(earlier)s::uuid[], version = %(version)s, "
        "capacity = %(capacity)s, labels = %(labels)s, provisioner = %(provisioner)s, state = %(state)s, "
        "launch_error = %(launch_error)s, last_heartbeat_at = tk_now() WHERE name = %(name)s",
        report.params(earlier=earlier),
    )


async def mark_silent(tx: Tx, *, silent_s: float) -> int:
    """Hosts that were not heard for that long are `gone`. That by itself ends no attempt."""
    return await tx.execute(
        "UPDATE hosts SET state = 'gone' WHERE state <> 'gone' AND last_heartbeat_at < tk_now() - make_interval(secs => %s)",
        (silent_s,),
    )


async def list_hosts(reader: Reader) -> list[HostView]:
    """All of them with their load in trees, by name."""
    return await reader.fetch_all(
        "SELECT h.name, h.state, h.launch_error, h.version, h.capacity, h.provisioner, h.last_heartbeat_at, "
        "(SELECT count(DISTINCT root_run_id) FROM attempts a WHERE a.host = h.name AND a.ended_at IS NULL) AS live_trees "
        "FROM hosts h ORDER BY h.name",
        as_=HostView,
    )


async def expected_and_heard(reader: Reader, *, silent_s: float) -> tuple[bool, bool]:
    """Whether any host is expected (a token for one is out), and whether one was heard within `silent_s`."""
    row = await reader.fetch_one(
        "SELECT EXISTS (SELECT 1 FROM host_tokens WHERE revoked_at IS NULL) AS expected, "
        "EXISTS (SELECT 1 FROM hosts WHERE state <> 'gone' AND last_heartbeat_at >= tk_now() - make_interval(secs => %s)) "
        "AS heard",
        (silent_s,),
    )
    return (False, False) if row is None else (bool(row["expected"]), bool(row["heard"]))
