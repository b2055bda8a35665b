"""From the POST of a message to the prompt's arrival at the agent, by the agent's own ledger.

*Warm*: sandbox, agent process and a spare child are there, as for somebody who talks with an agent. *Back to back*: the
next message comes the moment that the turn has ended, when the host may be out of spares. *Cold*: the first message of a
fresh conversation, whose sandbox is created for it. Both clocks are this machine's: a sandbox has no other.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from bench.report import PERCENTILE_COLUMNS, Chapter, Target
from bench.stats import Summary
from bench.system import BenchError, System
from turnkeeper.kit.ids import new_id

WARM_P50_MS, WARM_P99_MS = 60.0, 200.0
PAUSE_S = 1.0
"""Between a turn's end and the next message."""
_NS_PER_MS = 1_000_000

_PARTS = (
    ("submit", "POST to stored"),
    ("claim", "stored to claimed"),
    ("hand_over", "claimed to accepted"),
    ("enter", "accepted to prompt"),
)


@dataclass(frozen=True)
class Sample:
    """One turn, in ms from the POST. `parts` by the control plane's own record; `end_ms`: the stream's end was read."""

    prompt_ms: float
    end_ms: float
    parts: dict[str, float]


def measure_warm(system: System, *, paced: int, back_to_back: int) -> Chapter:
    """One conversation, one turn at a time."""
    chapter = Chapter("warm", "Message to prompt, warm (POST to the agent's ledger)", PERCENTILE_COLUMNS)
    thread_id = system.new_conversation("bench warm")
    for _ in range(3):
        system.turn(thread_id, "/say ready")
    samples = [_timed(system, thread_id, pause_s=PAUSE_S) for _ in range(paced)]
    _add(chapter, "paced", f"warm, {PAUSE_S:g} s apart", samples, with_parts=True)
    prompt = Summary.of([sample.prompt_ms for sample in samples])
    chapter.targets = [
        Target("warm p50", prompt.p50, WARM_P50_MS, "ms"),
        Target("warm p99", prompt.p99, WARM_P99_MS, "ms"),
    ]
    hurried = [_timed(system, thread_id, pause_s=0) for _ in range(back_to_back)]
    _add(chapter, "back_to_back", "warm, back to back", hurried, with_parts=False)
    system.close(thread_id)
    system.wait_sandboxes_gone()
    return chapter


def measure_cold(system: System, *, count: int) -> Chapter:
    """Fresh conversations, one at a time; the machine is at rest before each."""
    chapter = Chapter("cold", "Message to prompt, cold (sandbox created)", PERCENTILE_COLUMNS)
    samples: list[Sample] = []
    for _ in range(count):
        thread_id = system.new_conversation("bench cold")
        samples.append(_timed(system, thread_id, pause_s=PAUSE_S))
        system.close(thread_id)
        system.wait_sandboxes_gone()
    _add(chapter, "cold", "cold", samples, with_parts=True)
    return chapter


def _add(chapter: Chapter, key: str, label: str, samples: list[Sample], *, with_parts: bool) -> None:
    chapter.add_summary(f"{key}_prompt_ms", f"{label}: prompt", Summary.of([sample.prompt_ms for sample in samples]))
    for part, name in _PARTS if with_parts else ():
        summary = Summary.of([sample.parts[part] for sample in samples])
        chapter.add_summary(f"{key}_{part}_ms", f"  of it {name}", summary)
    chapter.add_summary(f"{key}_end_ms", f"{label}: end of turn", Summary.of([sample.end_ms for sample in samples]))


def _timed(system: System, thread_id: str, *, pause_s: float) -> Sample:
    time.sleep(pause_s)
    text = f"/say {new_id()}"
    posted_ns = time.time_ns()
    submitted = system.client.submit(thread_id, text, idempotency_key=new_id())
    system.finish_turn(submitted.run.id)
    ended_ns = time.time_ns()
    arrived_ns = arrival(system.ledger, text)
    attempt = system.client.run(submitted.run.id).attempts[-1]
    if attempt.accepted_at is None:
        raise BenchError(f"run {submitted.run.id} completed, but its attempt was never accepted")
    stored, claimed = submitted.message.created_at.timestamp(), attempt.claimed_at.timestamp()
    accepted = attempt.accepted_at.timestamp()
    return Sample(
        prompt_ms=(arrived_ns - posted_ns) / _NS_PER_MS,
        end_ms=(ended_ns - posted_ns) / _NS_PER_MS,
        parts={
            "submit": stored * 1000 - posted_ns / _NS_PER_MS,
            "claim": (claimed - stored) * 1000,
            "hand_over": (accepted - claimed) * 1000,
            "enter": arrived_ns / _NS_PER_MS - accepted * 1000,
        },
    )


def arrival(ledger: Path, text: str) -> int:
    """When this prompt reached its agent, in unix ns. `BenchError` unless it did so exactly once."""
    times = arrivals(ledger, text)
    if len(times) != 1:
        raise BenchError(f"the agent received the prompt {text!r} {len(times)} times")
    return times[0]


def arrivals(ledger: Path, text: str) -> list[int]:
    """Each arrival of this prompt so far, in unix ns."""
    needle = json.dumps(text).encode()
    lines = ledger.read_bytes().splitlines() if ledger.exists() else []
    return [int(json.loads(line)["t"]) for line in lines if needle in line]
