"""`python -m bench [CHAPTER …] [--quick] [--json] [--data-parent DIR]`.

Starts a `turnkeeper up` of its own, measures, prints a table for each chapter, and as the last line one JSON object; with
`--json` that line alone. The exit status says whether everything could be measured, not whether targets were met: those
are in the table and in the object.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.machine import describe
from bench.memory import measure_memory
from bench.prompts import measure_cold, measure_warm
from bench.recovery import measure_recovery
from bench.renewals import Load, measure_renewals
from bench.report import Chapter
from bench.stream import measure_stream
from bench.system import BenchError, System, running_system
from bench.throughput import measure_turns
from bench.wire import UnexpectedAnswerError
from turnkeeper.client.http import CallError

_FULL_LOAD = Load(leases=10_000, connections=(8, 48, 256), seconds=10)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    warm: int = 100
    hurried: int = 30
    cold: int = 20
    slow_chunks: int = 100
    fast_chunks: int = 500
    drivers: tuple[int, ...] = (1, 2, 4)
    turns_each: int = 60
    live_turns: int = 3
    renewals: Load = _FULL_LOAD
    kills: int = 10


QUICK = Sizes(
    warm=15,
    hurried=5,
    cold=3,
    slow_chunks=20,
    fast_chunks=100,
    drivers=(1, 4),
    turns_each=10,
    live_turns=2,
    renewals=Load(leases=1_000, connections=(1, 8), seconds=2),
    kills=1,
)

# Memory first: it wants a fresh system. Turns last: they take the host's place.
CHAPTERS: dict[str, Callable[[System, Sizes], Chapter]] = {
    "memory": lambda system, sizes: measure_memory(system, turns=sizes.live_turns),
    "warm": lambda system, sizes: measure_warm(system, paced=sizes.warm, back_to_back=sizes.hurried),
    "cold": lambda system, sizes: measure_cold(system, count=sizes.cold),
    "stream": lambda system, sizes: measure_stream(system, slow=sizes.slow_chunks, fast=sizes.fast_chunks),
    "recovery": lambda system, sizes: measure_recovery(system, count=sizes.kills),
    "turns": lambda system, sizes: measure_turns(system, drivers=sizes.drivers, turns_each=sizes.turns_each),
    "renewals": lambda system, sizes: measure_renewals(system, sizes.renewals),
}


def main() -> int:
    """The exit status: 0 measured, 1 not, 2 used wrongly."""
    options = _options()
    sizes = QUICK if options.quick else Sizes()
    names = [name for name in CHAPTERS if not options.chapters or name in options.chapters]

    def say(text: str) -> None:
        if not options.json:
            print(text, flush=True)

    try:
        with running_system(options.data_parent) as system:
            machine = describe(system.data)
            result: dict[str, object] = {"quick": options.quick, "machine": machine, "up_s": round(system.started_s, 2)}
            say(", ".join(f"{name} {value}" for name, value in machine.items()))
            say(f"`turnkeeper up` ready after {system.started_s:.2f} s (first start, database made)\n")
            chapters = result["chapters"] = {}
            for name in names:
                chapter = CHAPTERS[name](system, sizes)
                chapters[name] = chapter.as_json()
                say(chapter.as_text() + "\n")
    except (BenchError, UnexpectedAnswerError, CallError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure latency, throughput and memory on a `turnkeeper up` of its own.",
        epilog="Example: python -m bench warm stream --quick",
    )
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help=f"of {', '.join(CHAPTERS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="few samples: for a look, not for a claim")
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    parser.add_argument(
        "--data-parent",
        type=Path,
        metavar="DIR",
        help="directory below which the data directory is made; its file system's fsync is part of the numbers",
    )
    options = parser.parse_args()
    unknown = [name for name in options.chapters if name not in CHAPTERS]
    if unknown:
        parser.error(f"there is no chapter {unknown[0]!r}; there are {', '.join(CHAPTERS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
