"""From SIGKILL of a worker, or of a whole host, in the middle of a turn to the conversation being usable again.

*Admitted*: the prompt has reached the agent. The turn is never replayed: the conversation is LOST, and what is usable again
is its Workdir, for another conversation; timed are the end of the run, and the moment at which another conversation in that
Workdir is accepted. *Not admitted*: the worker dies while a setup command of its agent runs, in a conversation's second
turn; timed is the end of the third one, whose message is sent right after the kill.

The host finds a killed worker gone at once, and a new host (`up` starts it) those of the one before it, so no lease is
waited for. For the lease alone, the host is stopped before the kill and goes on when the run has ended: nobody tells of the
worker, as where a machine is lost. That is measured with a short lease, in a system of its own; it is over by the lease's
end and the reaper's grace, which with the default lease is at most 122 s.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from bench import processes
from bench.prompts import arrivals
from bench.report import PERCENTILE_COLUMNS, Chapter
from bench.stats import Summary
from bench.system import AGENT, BenchError, System, running_system, wait_until
from turnkeeper.client.failures import ClientError
from turnkeeper.kit.ids import new_id
from turnkeeper.main.paths import DataDirectory
from turnkeeper.wire.public import NewConversation

SHORT_LEASE = {
    "AGENT_LEASE_TTL": "6",
    "AGENT_HEARTBEAT_INTERVAL": "2",
    "AGENT_HEARTBEAT_TIMEOUT": "2",
    "AGENT_HEARTBEAT_RETRY_DELAY": "1",
}
_SETUP_AGENT = "bench-setup"
_HOLD, _HELD = "bench-hold", "bench-held"
_SETUP = f"test ! -e /workspace/{_HOLD} || {{ touch /workspace/{_HELD}; exec sleep 600; }}"
_STARTS_WITHIN_S = 60.0
_RECOVERS_WITHIN_S = 120.0
_CONFLICT = 409
_POLL_S = 0.01

T = TypeVar("T")
Kill = Callable[[System, int], None]
"""Kills the worker of that pid, in its way."""


@dataclass(frozen=True)
class _Way:
    """One way to die. `alone`: the host says nothing until the run has ended. `fresh`: each in a system of its own."""

    key: str
    label: str
    kill: Kill
    alone: bool = False
    fresh: bool = False


def measure_recovery(system: System, *, count: int) -> Chapter:
    """`count` turns for each way and each stage."""
    chapter = Chapter("recovery", "SIGKILL to usable again (in ms)", PERCENTILE_COLUMNS)
    _measure(chapter, system, _Way("child", "worker killed", _kill_child), count)
    # `up` starts a host that ends again and again only after a pause: each of them is the first of its system.
    _measure(chapter, system, _Way("host", "host and worker killed", _kill_host, fresh=True), count)
    with running_system(system.data.parent, SHORT_LEASE) as short:
        lease = f"{SHORT_LEASE['AGENT_LEASE_TTL']} s lease"
        _measure(chapter, short, _Way("child_short_lease", f"worker killed, {lease}", _kill_child), count)
        alone = _Way("lease_alone", f"worker killed, nobody tells, {lease}", _kill_unseen, alone=True)
        _measure(chapter, short, alone, count)
    chapter.numbers["short_lease"] = SHORT_LEASE
    return chapter


def _measure(chapter: Chapter, system: System, way: _Way, count: int) -> None:
    admitted = [_timed(_admitted, system, way) for _ in range(count)]
    ended, free = zip(*admitted, strict=True)
    chapter.add_summary(f"{way.key}_admitted_ended_ms", f"{way.label}, admitted: run ended", Summary.of(ended))
    chapter.add_summary(f"{way.key}_admitted_free_ms", "  Workdir free for another conversation", Summary.of(free))
    prepared = [_timed(_not_admitted, system, way) for _ in range(count)]
    chapter.add_summary(
        f"{way.key}_prepared_ms", f"{way.label}, not admitted: next message completed", Summary.of(prepared)
    )


def _timed(one: Callable[[System, _Way], T], system: System, way: _Way) -> T:
    with running_system(system.data.parent) if way.fresh else contextlib.nullcontext(system) as used:
        _put_setup_agent(used)
        return one(used, way)


def _admitted(system: System, way: _Way) -> tuple[float, float]:
    """To the run's end, and to another conversation in the Workdir; in ms."""
    thread_id = system.new_conversation("bench recovery")
    workdir = system.client.conversation(thread_id).workdir
    text = f"/say {new_id()}\n/sleep 600"
    run_id = system.client.submit(thread_id, text, idempotency_key=new_id()).run.id
    wait_until(lambda: arrivals(system.ledger, text), _STARTS_WITHIN_S, "the prompt at its agent")
    child = _child_of(system, run_id)
    began = time.perf_counter()
    way.kill(system, child)
    _wait_ended(system, run_id)
    ended_ms = (time.perf_counter() - began) * 1000
    another = _wait_free(system, workdir)
    free_ms = (time.perf_counter() - began) * 1000
    if way.alone:
        _continue_host(system)
    if (state := system.client.conversation(thread_id).state) != "lost":
        raise BenchError(f"conversation {thread_id} is {state} after its admitted turn was killed, not lost")
    if (times := len(arrivals(system.ledger, text))) != 1:
        raise BenchError(f"the agent received the prompt {times} times")
    system.turn(another, "/say usable")
    system.close(another)
    system.wait_sandboxes_gone()
    return ended_ms, free_ms


def _not_admitted(system: System, way: _Way) -> float:
    """To the end of the next message's turn, in ms."""
    workspace = system.ledger.parent
    thread_id = system.new_conversation("bench recovery", agent=_SETUP_AGENT)
    system.turn(thread_id, "/say ready")
    (workspace / _HOLD).touch()
    run_id = system.client.submit(thread_id, "/say never", idempotency_key=new_id()).run.id
    wait_until((workspace / _HELD).exists, _STARTS_WITHIN_S, "the setup command")
    child = _child_of(system, run_id)
    for name in (_HOLD, _HELD):
        (workspace / name).unlink()
    began = time.perf_counter()
    way.kill(system, child)
    following = system.client.submit(thread_id, "/say usable", idempotency_key=new_id()).run.id
    if way.alone:
        _wait_ended(system, run_id)
        _continue_host(system)
    system.finish_turn(following)
    took_ms = (time.perf_counter() - began) * 1000
    if (status := system.client.run(run_id).status) != "failed":
        raise BenchError(f"run {run_id} is {status} after its worker was killed, not failed")
    system.close(thread_id)
    system.wait_sandboxes_gone()
    return took_ms


def _kill_child(_: System, child: int) -> None:
    os.kill(child, signal.SIGKILL)


def _kill_host(system: System, child: int) -> None:
    os.kill(_host(system), signal.SIGKILL)
    os.kill(child, signal.SIGKILL)


def _kill_unseen(system: System, child: int) -> None:
    os.kill(_host(system), signal.SIGSTOP)
    os.kill(child, signal.SIGKILL)


def _continue_host(system: System) -> None:
    os.kill(_host(system), signal.SIGCONT)


def _host(system: System) -> int:
    """The host of now: `up` starts another one where it was killed."""
    hosts = [pid for pid in processes.tree(system.up_pid) if processes.role_of(pid) == "host"]
    if len(hosts) != 1:
        raise BenchError(f"{len(hosts)} hosts run, not one")
    return hosts[0]


def _child_of(system: System, run_id: str) -> int:
    """The worker of this run, by its host's records."""
    for file in (DataDirectory(system.data).hosts / "local" / "children").glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            record = json.loads(file.read_bytes())
            if record["job"] == run_id:
                return int(record["pid"])
    raise BenchError(f"no worker has run {run_id}")


def _wait_ended(system: System, run_id: str) -> None:
    _poll(lambda: system.client.run(run_id).ended_at is not None, f"the end of run {run_id}")


def _wait_free(system: System, workdir: str) -> str:
    """Another conversation in this Workdir, as soon as it is accepted."""
    made = list[str]()

    def is_free() -> bool:
        new = NewConversation(agent=AGENT, title="bench recovery, another", workdir=workdir)
        try:
            made.append(system.client.create_conversation(new, idempotency_key=new_id()).thread_id)
        except ClientError as error:
            if error.status != _CONFLICT:
                raise
            return False
        return True

    _poll(is_free, f"the Workdir {workdir} to be free")
    return made[0]


def _poll(is_so: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + _RECOVERS_WITHIN_S
    while not is_so():
        if time.monotonic() > ends:
            raise BenchError(f"waited {_RECOVERS_WITHIN_S:g} s in vain for {what}")
        time.sleep(_POLL_S)


def _put_setup_agent(system: System) -> None:
    """As the bench's agent, with a setup command that waits while a file is there."""
    definition = dict(system.client.agent(AGENT).definition or {})
    definition |= {"name": _SETUP_AGENT, "title": "Bench with setup", "setup": [["/bin/sh", "-c", _SETUP]]}
    system.client.put_agent(_SETUP_AGENT, definition)
