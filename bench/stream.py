"""From a chunk that the agent sends to the client that reads the run's event stream.

The agent writes the time of its sending into each chunk. On the way: sandbox manager, its provisioner's proxy, the
worker, the control plane's transaction (one fsync per batch), the signal, and the SSE stream.
"""

import time

from bench.report import PERCENTILE_COLUMNS, Chapter, Target
from bench.stats import Summary
from bench.system import BenchError, System
from turnkeeper.client.owner import StreamEvent
from turnkeeper.kit.ids import new_id
from turnkeeper.wire.turn import EventKind

STREAM_P50_MS = 60.0
SLOW_PAUSE_S, FAST_PAUSE_S = 0.1, 0.01
"""A chunk now and then, and chunks as a model of 100 tokens a second gives them."""
_NS_PER_MS = 1_000_000


def measure_stream(system: System, *, slow: int, fast: int) -> Chapter:
    """Chunks of a warm turn, at two paces."""
    chapter = Chapter("stream", "Agent's chunk to the client's event stream", PERCENTILE_COLUMNS)
    thread_id = system.new_conversation("bench stream")
    system.turn(thread_id, "/say ready")
    for key, count, pause_s in (("slow", slow, SLOW_PAUSE_S), ("fast", fast, FAST_PAUSE_S)):
        system.wait_spares(2)
        summary = Summary.of(_lags(system, thread_id, count, pause_s))
        chapter.add_summary(f"{key}_chunk_ms", f"a chunk every {pause_s * 1000:g} ms", summary)
        chapter.targets.append(Target(f"chunk p50, every {pause_s * 1000:g} ms", summary.p50, STREAM_P50_MS, "ms"))
    system.close(thread_id)
    system.wait_sandboxes_gone()
    return chapter


def _lags(system: System, thread_id: str, count: int, pause_s: float) -> list[float]:
    """In ms, one for each chunk; `BenchError` unless every chunk came."""
    text = f"/ticks {count} {pause_s:g}"
    run_id = system.client.submit(thread_id, text, idempotency_key=new_id()).run.id
    lags: list[float] = []
    events: list[StreamEvent] = []
    for event in system.client.run_events(run_id):
        read_ns = time.time_ns()
        events.append(event)
        if event.kind is EventKind.TEXT:
            lags += [(read_ns - int(sent)) / _NS_PER_MS for sent in str(event.data.get("text", "")).split()]
    system.checked(run_id, events)
    if len(lags) != count:
        raise BenchError(f"{len(lags)} of {count} chunks arrived")
    return lags
