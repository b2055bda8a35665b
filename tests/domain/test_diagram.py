"""The page of diagrams is what the tables draw."""

from pathlib import Path

from turnkeeper.domain.diagram import mermaid, page
from turnkeeper.domain.run import TABLE, RunStatus

DOCS = Path(__file__).parents[2] / "docs" / "state-machines.md"


def test_the_page_is_current() -> None:
    """House style 1: the diagram in the docs is generated from the table."""
    assert DOCS.read_text(encoding="utf-8") == page(), (
        "run: python -m turnkeeper.domain.diagram > docs/state-machines.md"
    )


def test_every_move_is_drawn() -> None:
    """No arrow is missing, none is made up, final states end."""
    text = mermaid(TABLE, RunStatus, RunStatus.PENDING)
    drawn = {tuple(line.split(":")[0].split(" --> ")) for line in map(str.strip, text.splitlines()) if " --> " in line}
    moves = {(state.value, following.value) for (state, _), following in TABLE.items() if state is not following}
    ends = {(status, "[*]") for status in ("completed", "failed", "cancelled", "interrupted")}
    assert drawn == moves | ends | {("[*]", "pending")}
