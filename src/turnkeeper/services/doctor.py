"""Holds what the database records against the product's rules (`domain.history`). Reads only.

Scopes are looked at page by page, each page in one snapshot: every rule but one is about one scope, so that a page is as
good as the whole, and a live database is neither held up nor kept from vacuuming. The holds of Workdirs are the exception,
which are looked at by owner.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from turnkeeper.domain.history import Finding, History, check
from turnkeeper.domain.history.facts import SLACK_S, LedgerEntry, ProcessSeen
from turnkeeper.domain.history.places import workdir_holds_do_not_overlap
from turnkeeper.domain.settings import Limits, Timing
from turnkeeper.store import history as statements
from turnkeeper.store import migrate
from turnkeeper.store.errors import DatabaseRefused
from turnkeeper.store.history import FIRST, ScopeSize
from turnkeeper.store.tx import Database, Reader

SCOPES_MAX: Final = 200
RUNS_MAX: Final = 5000
OWNERS_MAX: Final = 100
_BY_OWNER: Final = workdir_holds_do_not_overlap.__name__


@dataclass(frozen=True)
class Examined:
    """How much was looked at, and how many findings there were."""

    scopes: int
    runs: int
    findings: int


async def examine(
    db: Database,
    timing: Timing,
    report: Callable[[Finding], None],
    *,
    trees_per_owner: int = Limits().trees_per_owner,
    slack_s: float = SLACK_S,
    scopes_max: int = SCOPES_MAX,
    runs_max: int = RUNS_MAX,
) -> Examined:
    """Hold everything against every rule; `report` is given each finding as it is made.

    `trees_per_owner`: the control plane's setting, by which runs wait whose owner has no room of their own.
    Memory is bounded by `runs_max` runs, or by the largest scope. Errors: `DatabaseUnavailable`, and `DatabaseRefused` for
    another schema than this release's.
    """
    await require_schema(db)
    scopes = runs = findings = 0

    def tell(history: History) -> None:
        nonlocal findings
        for finding in check(replace(history, slack_s=slack_s)):
            findings += 1
            report(finding)

    async for page in _pages(db, scopes_max, runs_max):
        tell(await db.snapshot_read("doctor.scopes", _scopes(page, timing, trees_per_owner)))
        scopes, runs = scopes + len(page), runs + sum(one.runs for one in page)
    after = FIRST
    while uids := await db.read("doctor.owners", lambda r, a=after: statements.owners_with_holds(r, a, OWNERS_MAX)):
        history = await db.snapshot_read("doctor.holds", lambda r, u=uids: statements.read_holds(r, u, timing))
        for finding in check(history, only=(_BY_OWNER,)):
            findings += 1
            report(finding)
        after = uids[-1]
    return Examined(scopes, runs, findings)


async def collect(
    db: Database,
    timing: Timing,
    *,
    trees_per_owner: int = Limits().trees_per_owner,
    ledger: Iterable[LedgerEntry] | None = None,
    processes: Iterable[ProcessSeen] = (),
    slack_s: float = SLACK_S,
) -> History:
    """The whole database as one history in one snapshot, with what was seen outside of it. For tests: it is held in memory."""

    async def look(reader: Reader) -> History:
        scopes: list[str] = []
        while page := await statements.scopes_after(reader, scopes[-1] if scopes else FIRST, SCOPES_MAX):
            scopes += [one.runtime_scope_id for one in page]
        return await statements.read_scopes(
            reader, scopes, timing, prompts=ledger is not None, trees_per_owner=trees_per_owner
        )

    history = await db.snapshot_read("doctor.all", look)
    return replace(
        history, slack_s=slack_s, ledger=None if ledger is None else tuple(ledger), processes=tuple(processes)
    )


async def require_schema(db: Database) -> None:
    """`DatabaseRefused` unless the schema is this release's."""
    line = migrate.refusal(await db.read("doctor.schema", migrate.schema_state), db.place)
    if line is not None:
        raise DatabaseRefused(line)


async def _pages(db: Database, scopes_max: int, runs_max: int) -> AsyncGenerator[list[ScopeSize]]:
    """All scopes in the order of their ids, in pages of at most `runs_max` runs or of one scope."""
    after = FIRST
    while found := await db.read("doctor.sizes", lambda r, a=after: statements.scopes_after(r, a, scopes_max)):
        page: list[ScopeSize] = []
        for one in found:
            if page and sum(other.runs for other in page) + one.runs > runs_max:
                yield page
                page = []
            page.append(one)
        yield page
        after = found[-1].runtime_scope_id


def _scopes(page: Sequence[ScopeSize], timing: Timing, trees_per_owner: int) -> Callable[[Reader], Awaitable[History]]:
    names = [one.runtime_scope_id for one in page]
    return lambda reader: statements.read_scopes(reader, names, timing, trees_per_owner=trees_per_owner)
