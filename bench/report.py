"""What chapters hand in: rows for the table, numbers for the JSON object, targets and whether they were met."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.stats import Summary


@dataclass(frozen=True)
class Target:
    """A number of the product's requirements. `at_least`: more is better."""

    name: str
    measured: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the measured value is within the limit."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def sign(self) -> str:
        """How the limit is to be read."""
        return ">=" if self.at_least else "<="

    def as_json(self) -> dict[str, Any]:
        """For the JSON object."""
        return {
            "name": self.name,
            "measured": self.measured,
            "sign": self.sign,
            "limit": self.limit,
            "unit": self.unit,
            "met": self.met,
        }


@dataclass
class Chapter:
    """The result of one chapter."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    numbers: dict[str, Any] = field(default_factory=dict[str, Any])
    targets: list[Target] = field(default_factory=list[Target])

    def add_summary(self, key: str, label: str, summary: Summary) -> None:
        """One row of percentiles, for a chapter with `PERCENTILE_COLUMNS`."""
        shown = (summary.p50, summary.p90, summary.p99, summary.largest)
        self.rows.append((label, str(summary.count), *(f"{value:.1f}" for value in shown)))
        self.numbers[key] = summary.as_json()

    def as_text(self) -> str:
        """Title, table, targets."""
        lines = [self.title, *table(self.columns, self.rows)]
        for target in self.targets:
            word = "met" if target.met else "MISSED"
            limit = f"{target.sign} {target.limit:g} {target.unit}".rstrip()
            lines.append(f"  target {target.name} {limit}: {target.measured:g}, {word}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """For the JSON object."""
        return {**self.numbers, "targets": [target.as_json() for target in self.targets]}


PERCENTILE_COLUMNS = ("ms", "n", "p50", "p90", "p99", "max")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned text: the first column to the left, the others to the right."""
    widths = [max(len(row[place]) for row in [columns, *rows]) for place in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "  " + "  ".join(cells).rstrip()

    return [line(columns), *(line(row) for row in rows)]
