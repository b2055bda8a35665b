"""Samples and their percentiles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was really measured. `samples` must not be empty."""
    ordered = sorted(samples)
    rank = max(1, math.ceil(len(ordered) * percent / 100))
    return ordered[rank - 1]


@dataclass(frozen=True)
class Summary:
    """One measured quantity, in its own unit."""

    count: int
    p50: float
    p90: float
    p99: float
    largest: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Summary":
        """Of at least one sample."""
        return cls(
            count=len(samples),
            p50=round(percentile(samples, 50), 2),
            p90=round(percentile(samples, 90), 2),
            p99=round(percentile(samples, 99), 2),
            largest=round(max(samples), 2),
        )

    def as_json(self) -> dict[str, float | int]:
        """For the JSON object."""
        return {"n": self.count, "p50": self.p50, "p90": self.p90, "p99": self.p99, "max": self.largest}
