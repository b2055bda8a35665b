"""The one order of locks (protocol, section 1).

Rank never falls within a transaction, at most one scope lock is taken, and within a rank rows are locked in one order:
runs by root, target, then level by level; everything else by ascending key. So two transactions can never wait for each
other. Every lock is announced here before it is asked for; a wrong order raises `InvariantViolation` at run time, also
when nobody else is there to deadlock with.

Row locks are `FOR NO KEY UPDATE`: the stronger mode deadlocks with foreign-key checks, and with `SKIP LOCKED` it skips a
row that is only referenced.

Lock, then look: the row that a lock function returns is the newest version, but a time in the same statement may be from
before the wait. Test time in the next statement.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar, cast, overload

from turnkeeper.domain.errors import InvariantViolation

if TYPE_CHECKING:
    from turnkeeper.store.tx import Tx

R = TypeVar("R")

_LIVE: Final[LiteralString] = "status NOT IN ('completed', 'failed', 'cancelled', 'interrupted')"


class Rank(IntEnum):
    """The ranks of protocol section 1, lowest first."""

    SCOPE = 0
    OWNER = 1
    RUN = 2
    ATTEMPT = 3
    WORKSPACE = 4
    MEMBERSHIP = 5
    ACTIVATION = 6
    INPUT = 7
    HOST = 8
    EVENT_COUNTER = 9


class RunPlace(IntEnum):
    """The order within rank 2: the tree's root, the target, then the levels below."""

    ROOT = 0
    TARGET = 1
    LEVEL = 2


@dataclass(frozen=True)
class LockTaken:
    """One lock that the transaction called `transaction` now holds. `key` is the scope, row id or name."""

    transaction: str
    rank: Rank
    key: str


LockObserver = Callable[[LockTaken], Awaitable[None]]


class HeldLocks:
    """The locks of one transaction. `announce` is called before a lock is asked for, `taken` when it is held."""

    def __init__(self, transaction: str, observer: LockObserver | None = None) -> None:
        self._transaction = transaction
        self._observer = observer
        self._held: dict[tuple[Rank, str], None] = {}
        self._rank = -1
        self._within: tuple[object, ...] = ()

    def announce(self, rank: Rank, key: str | None, within: tuple[object, ...] | None = None) -> None:
        """Refuse a lock that comes out of order. `within` orders the rank; by default it is the key.

        `key` None: a statement that locks several rows of the rank in the order that it states itself.
        """
        if key is not None and (rank, key) in self._held:
            return  # already ours: asking again waits for nobody
        place = within if within is not None else (key,) if key is not None else self._within_of(rank)
        if rank < self._rank:
            raise InvariantViolation(
                f"transaction {self._transaction}: lock {rank.name} {key or ''} after {Rank(self._rank).name}"
            )
        if rank == self._rank:
            if rank is Rank.SCOPE:
                raise InvariantViolation(f"transaction {self._transaction}: a second scope lock, {key}")
            if place < self._within:
                raise InvariantViolation(
                    f"transaction {self._transaction}: lock {rank.name} {key or ''} out of order within its rank"
                )
        self._rank, self._within = int(rank), place

    def _within_of(self, rank: Rank) -> tuple[object, ...]:
        return self._within if rank == self._rank else ()

    async def taken(self, rank: Rank, *keys: str) -> None:
        """Note locks that are now held, and tell the observer of those that are new."""
        for key in keys:
            if (rank, key) in self._held:
                continue
            self._held[rank, key] = None
            if rank not in (Rank.SCOPE, Rank.RUN):
                self._within = max(self._within, (key,))
            if self._observer is not None:
                await self._observer(LockTaken(self._transaction, rank, key))

    def holds(self, rank: Rank, key: str) -> bool:
        """Whether this transaction holds that lock."""
        return (rank, key) in self._held

    def require(self, rank: Rank, key: str) -> None:
        """Raise unless the lock is held: for a statement that relies on it."""
        if not self.holds(rank, key):
            raise InvariantViolation(f"transaction {self._transaction}: relies on lock {rank.name} {key}, not held")

    def all(self) -> tuple[tuple[Rank, str], ...]:
        """What is held, in the order of taking."""
        return tuple(self._held)


async def lock_scope(tx: "Tx", runtime_scope_id: str) -> None:
    """Rank 0: the advisory transaction lock of one runtime scope. Two scopes may share a key; they then only wait."""
    if tx.locks.holds(Rank.SCOPE, runtime_scope_id):
        return
    tx.locks.announce(Rank.SCOPE, runtime_scope_id)
    await tx.fetch_value("SELECT pg_advisory_xact_lock(hashtextextended('scope:' || %s, 0))", (runtime_scope_id,))
    await tx.locks.taken(Rank.SCOPE, runtime_scope_id)


@overload
async def lock_owner(tx: "Tx", uid: str) -> bool: ...
@overload
async def lock_owner(tx: "Tx", uid: str, as_: type[R]) -> R | None: ...
async def lock_owner(tx: "Tx", uid: str, as_: type[Any] | None = None) -> Any:
    """Rank 1: the owner's row. False or None: no such owner."""
    return await _lock_row(tx, Rank.OWNER, "users", "uid", uid, as_)


@overload
async def lock_root(tx: "Tx", run_id: str) -> bool: ...
@overload
async def lock_root(tx: "Tx", run_id: str, as_: type[R]) -> R | None: ...
async def lock_root(tx: "Tx", run_id: str, as_: type[Any] | None = None) -> Any:
    """Rank 2, first: the root run of the tree that is worked on."""
    return await _lock_row(tx, Rank.RUN, "runs", "id", run_id, as_, within=(RunPlace.ROOT,))


@overload
async def lock_run(tx: "Tx", run_id: str) -> bool: ...
@overload
async def lock_run(tx: "Tx", run_id: str, as_: type[R]) -> R | None: ...
async def lock_run(tx: "Tx", run_id: str, as_: type[Any] | None = None) -> Any:
    """Rank 2, second: the run that is the target. Alone where the use case locks no other run of the tree."""
    return await _lock_row(tx, Rank.RUN, "runs", "id", run_id, as_, within=(RunPlace.TARGET,))


async def lock_descendants(tx: "Tx", root_run_id: str, target_id: str, depth: int, as_: type[R]) -> list[R]:
    """Rank 2, last: the live runs below `target_id` (which lies `depth` levels below the root), level by level.

    Each level is read by a statement of its own after the level above is locked, so that a child committed meanwhile is
    seen (T-07). The walk passes through terminal runs and locks only the others.
    """
    found: list[R] = []
    parents: list[str] = [target_id]
    while parents:
        depth += 1
        tx.locks.announce(Rank.RUN, None, (RunPlace.LEVEL, depth))
        where: LiteralString = "root_run_id = %s AND depth = %s AND created_by_run_id = ANY(%s::uuid[])"
        rows = await _lock_rows(
            tx,
            Rank.RUN,
            "runs",
            "id",
            f"{where} AND {_LIVE} ORDER BY created_at, id",
            (root_run_id, depth, parents),
            as_,
        )
        found += rows
        below = await tx.fetch_all(f"SELECT id FROM runs WHERE {where}", (root_run_id, depth, parents))  # noqa: S608 - literal parts
        parents = [row["id"] for row in below]
    return found


async def lock_scope_runs(tx: "Tx", runtime_scope_id: str, as_: type[R]) -> list[R]:
    """Rank 2: every non-terminal run of the scope, before a cleanup fence is raised. Needs the scope lock."""
    tx.locks.require(Rank.SCOPE, runtime_scope_id)
    tx.locks.announce(Rank.RUN, None, (RunPlace.LEVEL, 0))
    return await _lock_rows(
        tx, Rank.RUN, "runs", "id", f"runtime_scope_id = %s AND {_LIVE} ORDER BY depth, created_at, id",
        (runtime_scope_id,), as_,
    )  # fmt: skip


@overload
async def lock_attempt(tx: "Tx", attempt_id: str) -> bool: ...
@overload
async def lock_attempt(tx: "Tx", attempt_id: str, as_: type[R]) -> R | None: ...
async def lock_attempt(tx: "Tx", attempt_id: str, as_: type[Any] | None = None) -> Any:
    """Rank 3."""
    return await _lock_row(tx, Rank.ATTEMPT, "attempts", "id", attempt_id, as_)


async def lock_attempts_skipping(tx: "Tx", attempt_ids: Sequence[str], as_: type[R]) -> list[R]:
    """Rank 3: those of the attempts that nobody else has locked, in id order (a batch of renewals, the reaper)."""
    tx.locks.announce(Rank.ATTEMPT, None)
    return await _lock_rows(
        tx, Rank.ATTEMPT, "attempts", "id", "id = ANY(%s::uuid[]) ORDER BY id", (list(attempt_ids),), as_, skip=True
    )


@overload
async def lock_open_attempt(tx: "Tx", run_id: str) -> bool: ...
@overload
async def lock_open_attempt(tx: "Tx", run_id: str, as_: type[R]) -> R | None: ...
async def lock_open_attempt(tx: "Tx", run_id: str, as_: type[Any] | None = None) -> Any:
    """Rank 3: the one open attempt of a run, if it has one."""
    tx.locks.announce(Rank.ATTEMPT, None)
    rows = await _lock_rows(tx, Rank.ATTEMPT, "attempts", "id", "run_id = %s AND ended_at IS NULL", (run_id,), as_)
    return _one(rows, as_)


async def lock_open_attempts(tx: "Tx", run_ids: Sequence[str], as_: type[R]) -> list[R]:
    """Rank 3: the open attempts of these runs, in id order."""
    tx.locks.announce(Rank.ATTEMPT, None)
    return await _lock_rows(
        tx, Rank.ATTEMPT, "attempts", "id",
        "run_id = ANY(%s::uuid[]) AND ended_at IS NULL ORDER BY id", (list(run_ids),), as_,
    )  # fmt: skip


@overload
async def lock_workspace(tx: "Tx", runtime_scope_id: str) -> bool: ...
@overload
async def lock_workspace(tx: "Tx", runtime_scope_id: str, as_: type[R]) -> R | None: ...
async def lock_workspace(tx: "Tx", runtime_scope_id: str, as_: type[Any] | None = None) -> Any:
    """Rank 4: the shared workspace of a runtime scope, if it has one. The key is the scope: there is one row for each."""
    return await _lock_row(tx, Rank.WORKSPACE, "shared_workspaces", "runtime_scope_id", runtime_scope_id, as_)


@overload
async def lock_membership(tx: "Tx", thread_id: str) -> bool: ...
@overload
async def lock_membership(tx: "Tx", thread_id: str, as_: type[R]) -> R | None: ...
async def lock_membership(tx: "Tx", thread_id: str, as_: type[Any] | None = None) -> Any:
    """Rank 5: the membership of a conversation, if it has one. The key is the conversation: there is one row for each."""
    return await _lock_row(tx, Rank.MEMBERSHIP, "memberships", "thread_id", thread_id, as_)


@overload
async def lock_activation(tx: "Tx", activation_id: str) -> bool: ...
@overload
async def lock_activation(tx: "Tx", activation_id: str, as_: type[R]) -> R | None: ...
async def lock_activation(tx: "Tx", activation_id: str, as_: type[Any] | None = None) -> Any:
    """Rank 6."""
    return await _lock_row(tx, Rank.ACTIVATION, "activations", "id", activation_id, as_)


@overload
async def lock_input(tx: "Tx", input_id: str) -> bool: ...
@overload
async def lock_input(tx: "Tx", input_id: str, as_: type[R]) -> R | None: ...
async def lock_input(tx: "Tx", input_id: str, as_: type[Any] | None = None) -> Any:
    """Rank 7."""
    return await _lock_row(tx, Rank.INPUT, "inputs", "id", input_id, as_)


@overload
async def lock_host(tx: "Tx", name: str) -> bool: ...
@overload
async def lock_host(tx: "Tx", name: str, as_: type[R]) -> R | None: ...
async def lock_host(tx: "Tx", name: str, as_: type[Any] | None = None) -> Any:
    """Rank 8."""
    return await _lock_row(tx, Rank.HOST, "hosts", "name", name, as_)


async def lock_event_counter(tx: "Tx", thread_id: str) -> int:
    """Rank 9: the event counter of a conversation, created at its first event. Returns the last number given out.

    The counter is raised by `UPDATE` under this lock, so numbers appear to readers in order and without a gap.
    """
    last = await _counter_row(tx, thread_id)
    if last is None:
        await tx.execute("INSERT INTO event_counters (thread_id) VALUES (%s) ON CONFLICT DO NOTHING", (thread_id,))
        last = await _counter_row(tx, thread_id)
    if last is None:
        raise InvariantViolation(f"transaction {tx.name}: event counter of {thread_id} vanished")
    return last


async def _counter_row(tx: "Tx", thread_id: str) -> int | None:
    tx.locks.announce(Rank.EVENT_COUNTER, thread_id)
    last = await tx.fetch_value(
        "SELECT last_seq FROM event_counters WHERE thread_id = %s FOR NO KEY UPDATE", (thread_id,)
    )
    if last is not None:
        await tx.locks.taken(Rank.EVENT_COUNTER, thread_id)
    return cast("int | None", last)


async def _lock_row(
    tx: "Tx",
    rank: Rank,
    table: LiteralString,
    column: LiteralString,
    key: str,
    as_: type[Any] | None,
    *,
    within: tuple[object, ...] | None = None,
) -> Any:
    tx.locks.announce(rank, key, within)
    columns = _columns(as_) if as_ is not None else column
    row = await tx.fetch_one(f"SELECT {columns} FROM {table} WHERE {column} = %s FOR NO KEY UPDATE", (key,), as_=as_)  # noqa: S608 - literal parts
    if row is not None:
        await tx.locks.taken(rank, key)
    return row if as_ is not None else row is not None


async def _lock_rows(
    tx: "Tx",
    rank: Rank,
    table: LiteralString,
    column: LiteralString,
    where: LiteralString,
    params: Sequence[object],
    as_: type[Any] | None,
    *,
    skip: bool = False,
) -> list[Any]:
    columns = _columns(as_) if as_ is not None else column
    tail: LiteralString = "FOR NO KEY UPDATE SKIP LOCKED" if skip else "FOR NO KEY UPDATE"
    rows = await tx.fetch_all(f"SELECT {columns} FROM {table} WHERE {where} {tail}", params, as_=as_)  # noqa: S608 - literal parts
    keys = [row[column] if as_ is None else getattr(row, column) for row in rows]
    await tx.locks.taken(rank, *keys)
    return rows


def _one(rows: list[Any], as_: type[Any] | None) -> Any:
    if as_ is None:
        return bool(rows)
    return rows[0] if rows else None


@cache
def _columns(as_: type[Any]) -> LiteralString:
    # The fields of a row class are column names; they are Python identifiers written in our source, so nothing that a
    # user sends can get into the text.
    return cast("LiteralString", ", ".join(field.name for field in fields(as_)))
