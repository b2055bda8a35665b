"""Proving that the database itself refuses a write, and by which guard."""

from collections.abc import Awaitable

import psycopg
import pytest

from harness.rows import Rows

TERMINAL = ("completed", "failed", "cancelled", "interrupted")
LIVE = ("pending", "running", "cancel_requested", "recovering")


async def refused(rows: Rows, guard: str, write: Awaitable[object]) -> None:
    """`write` must be refused by the constraint, index or trigger called `guard`."""
    with pytest.raises(psycopg.IntegrityError) as caught:
        async with rows.session.transaction():
            await write
    assert caught.value.diag.constraint_name == guard


def ended(status: str) -> dict[str, object]:
    """The columns that go with a status."""
    columns: dict[str, object] = {"status": status}
    if status in TERMINAL:
        columns["ended_at"] = "2026-01-01T00:00:00Z"
    if status == "failed":
        columns["error_code"] = "agent_exited"
    if status == "cancel_requested":
        columns["cancel_requested_at"] = "2026-01-01T00:00:00Z"
    return columns
