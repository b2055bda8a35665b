"""Runs: the moves of protocol section 2. Each statement names the state that it comes from; zero rows is an answer."""
# ruff: noqa: S608 - statements are LiteralString, which pyright proves; parameters are always bound

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString

from turnkeeper.store.guards import HELD, Lease
from turnkeeper.store.locks import Rank
from turnkeeper.store.locks import RunPlace as PlaceInRank
from turnkeeper.store.tx import Reader, Tx, jsonb


@dataclass(frozen=True)
class RunRow:
    """A row of `runs` without its texts, which may be large."""

    id: str
    thread_id: str
    uid: str
    agent: str
    kind: str
    runtime_scope_id: str
    root_run_id: str
    depth: int
    created_by_run_id: str | None
    relation_id: str | None
    status: str
    cancel_requested_at: datetime | None
    error_code: str | None
    runtime_cleanup_pending: bool
    ready_at: datetime | None
    provisioner: str | None
    releases: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True)
class RunPlace:
    """What never changes of a run and its conversation, so that it may be read before any lock is held."""

    id: str
    thread_id: str
    uid: str
    runtime_scope_id: str
    root_run_id: str
    depth: int
    runtime_policy: str


COLUMNS: Final[LiteralString] = (
    "id, thread_id, uid, agent, kind, runtime_scope_id, root_run_id, depth, created_by_run_id, relation_id, status, "
    "cancel_requested_at, error_code, runtime_cleanup_pending, ready_at, provisioner, releases, created_at, "
    "started_at, ended_at"
)


async def insert_chat(
    tx: Tx, *, run_id: str, thread_id: str, uid: str, agent: str, request_id: str, prompt: str
) -> RunRow:
    """A waiting run of a chat: the root of its own tree, in its own conversation's scope (T-04)."""
    row = await tx.fetch_one(
        "INSERT INTO runs (id, thread_id, uid, agent, kind, runtime_scope_id, root_run_id, request_id, prompt) "
        "VALUES (%(run)s, %(thread)s, %(uid)s, %(agent)s, 'chat', %(thread)s, %(run)s, %(request)s, %(prompt)s) "
        f"RETURNING {COLUMNS}",
        {"run": run_id, "thread": thread_id, "uid": uid, "agent": agent, "request": request_id, "prompt": prompt},
        as_=RunRow,
    )
    assert row is not None  # noqa: S101 - an insert returns its row
    return row


async def get_run(reader: Reader, run_id: str) -> RunRow | None:
    """The row, whoever owns it. Id, owner, conversation, scope and root never change."""
    return await reader.fetch_one(f"SELECT {COLUMNS} FROM runs WHERE id = %s", (run_id,), as_=RunRow)


async def place_of(reader: Reader, run_id: str) -> RunPlace | None:
    """Where a run belongs."""
    return await reader.fetch_one(
        "SELECT r.id, r.thread_id, r.uid, r.runtime_scope_id, r.root_run_id, r.depth, c.runtime_policy "
        "FROM runs r JOIN conversations c ON c.thread_id = r.thread_id WHERE r.id = %s",
        (run_id,),
        as_=RunPlace,
    )


async def prompt_of(reader: Reader, run_id: str) -> str:
    """The prompt."""
    return await reader.fetch_value("SELECT prompt FROM runs WHERE id = %s", (run_id,))


async def waiting_count(reader: Reader, thread_id: str) -> int:
    """How many runs wait in a conversation's line."""
    return await reader.fetch_value(
        "SELECT count(*) FROM runs WHERE thread_id = %s AND status = 'pending'", (thread_id,)
    )


async def lock_claimable(tx: Tx, *, provisioner: str, any_tree: bool, trees: list[str]) -> RunRow | None:
    """The run that has been ready for longest and that nobody else has locked; locked at rank 2.

    `any_tree` False: only runs of `trees`, which the host holds already (protocol 3: rooms are trees). Reads the index
    of ready runs alone.
    """
    tx.locks.announce(Rank.RUN, None, (PlaceInRank.TARGET,))
    row = await tx.fetch_one(
        f"SELECT {COLUMNS} FROM runs WHERE ready_at IS NOT NULL AND (provisioner IS NULL OR provisioner = %s) "
        "AND (%s OR root_run_id = ANY(%s::uuid[])) ORDER BY ready_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED",
        (provisioner, any_tree, trees),
        as_=RunRow,
    )
    if row is not None:
        await tx.locks.taken(Rank.RUN, row.id)
    return row


async def any_claimable(reader: Reader, *, provisioner: str, any_tree: bool, trees: list[str]) -> bool:
    """Whether some ready run fits: what `lock_claimable` would look for, without locking it."""
    return await reader.fetch_value(
        "SELECT EXISTS (SELECT 1 FROM runs WHERE ready_at IS NOT NULL AND (provisioner IS NULL OR provisioner = %s) "
        "AND (%s OR root_run_id = ANY(%s::uuid[])))",
        (provisioner, any_tree, trees),
    )


async def mark_claimed(tx: Tx, run_id: str) -> int:
    """`pending` and ready → `running`."""
    return await tx.execute(
        "UPDATE runs SET status = 'running', ready_at = NULL, started_at = coalesce(started_at, tk_now()) "
        "WHERE id = %s AND status = 'pending' AND ready_at IS NOT NULL AND cancel_requested_at IS NULL",
        (run_id,),
    )


async def mark_released(tx: Tx, run_id: str) -> int:
    """`running` → `pending`, by a release alone."""
    return await tx.execute(
        "UPDATE runs SET status = 'pending', releases = releases + 1 WHERE id = %s AND status = 'running'", (run_id,)
    )


async def count_release(tx: Tx, run_id: str) -> int:
    """Count a release that ends the run instead of queueing it again."""
    return await tx.execute(
        "UPDATE runs SET releases = releases + 1 WHERE id = %s AND status IN ('running', 'cancel_requested')", (run_id,)
    )


async def end_run(
    tx: Tx, run_id: str, *, source: str, status: str, error_code: str | None, error_detail: dict[str, Any] | None
) -> int:
    """The one statement that ends a run: from exactly `source` to a terminal status."""
    return await tx.execute(
        "UPDATE runs SET status = %s, error_code = %s, error_detail = %s, ready_at = NULL, room_wanted_at = NULL, "
        "ended_at = tk_now() "
        "WHERE id = %s AND status = %s",
        (status, error_code, None if error_detail is None else jsonb(error_detail), run_id, source),
    )


async def request_cancel(tx: Tx, run_id: str) -> int:
    """Store the fact, once, and move a running run to `cancel_requested`. A recovering or waiting run keeps its state."""
    return await tx.execute(
        "UPDATE runs SET cancel_requested_at = coalesce(cancel_requested_at, tk_now()), "
        "status = CASE status WHEN 'running' THEN 'cancel_requested' ELSE status END "
        "WHERE id = %s AND status IN ('pending', 'running', 'cancel_requested', 'recovering')",
        (run_id,),
    )


async def record_manifest(tx: Tx, lease: Lease, manifest: dict[str, Any], sha256: str) -> int:
    """Store the manifest where there is none (A-02). Zero: there is one already, or the lease is not held."""
    return await tx.execute(
        "UPDATE runs SET manifest = %(manifest)s, manifest_sha256 = %(sha256)s "
        f"WHERE id = %(run)s AND manifest IS NULL AND {HELD}",
        lease.params(manifest=jsonb(manifest), sha256=sha256),
    )


async def manifest_sha256(reader: Reader, run_id: str) -> str | None:
    """The digest of the stored manifest."""
    return await reader.fetch_value("SELECT manifest_sha256 FROM runs WHERE id = %s", (run_id,))


async def set_run_provisioner(tx: Tx, run_id: str, provisioner: str) -> int:
    """Note on the run which provisioner its scope has."""
    return await tx.execute(
        "UPDATE runs SET provisioner = %s WHERE id = %s AND provisioner IS NULL", (provisioner, run_id)
    )


async def unclaimed(reader: Reader, *, bound_s: float, limit: int) -> list[RunRow]:
    """Ready runs that no host took for `bound_s`, while no live host of their provisioner exists."""
    return await reader.fetch_all(
        f"SELECT {COLUMNS} FROM runs r WHERE ready_at < tk_now() - make_interval(secs => %s) "
        "AND NOT EXISTS (SELECT 1 FROM hosts h WHERE h.state = 'ready' "
        "AND (r.provisioner IS NULL OR h.provisioner = r.provisioner)) ORDER BY ready_at LIMIT %s",
        (bound_s, limit),
        as_=RunRow,
    )


async def is_unclaimed(reader: Reader, run_id: str, *, bound_s: float) -> bool:
    """The same of one run, to look again under its lock."""
    return await reader.fetch_value(
        "SELECT EXISTS (SELECT 1 FROM runs r WHERE id = %s AND status = 'pending' "
        "AND ready_at < tk_now() - make_interval(secs => %s) "
        "AND NOT EXISTS (SELECT 1 FROM hosts h WHERE h.state = 'ready' "
        "AND (r.provisioner IS NULL OR h.provisioner = r.provisioner)))",
        (run_id, bound_s),
    )
