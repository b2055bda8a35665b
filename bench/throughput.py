"""Turns per second at the control plane: drivers that speak a turn's worker API calls, without a sandbox.

The control plane and PostgreSQL are those of the running system; its host is stopped (SIGSTOP) meanwhile, and the drivers
speak with its token, so that nothing else claims. All messages are waiting before the clock starts: what is timed is
claim to finish, ten calls a turn, each with a commit (one fsync). They are one owner's, who has room for four turns at a
time, so more drivers would only wait.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import turnkeeper
from bench import processes
from bench.driver import drive
from bench.report import Chapter
from bench.stats import Summary
from bench.system import CAPACITY, OWNER_ROOM, BenchError, System
from bench.wire import Connection
from turnkeeper.kit.ids import new_id
from turnkeeper.wire.host import HostHeartbeat

_COLUMNS = ("drivers", "turns", "turns/s", "turn p50 ms", "turn p99 ms", "CPU ms/turn: control", "postgres", "driver")

_UNTIMED = 20
"""Turns before the clock starts: statements are prepared and caches filled by then."""


def measure_turns(system: System, *, drivers: tuple[int, ...], turns_each: int) -> Chapter:
    """One row for each number of drivers, then the calls of the last one."""
    chapter = Chapter("turns", "Turns per second at the control plane (worker API calls, no sandbox)", _COLUMNS)
    chapter.numbers["by_drivers"] = by_drivers = {}
    threads = [system.new_conversation(f"bench turns {number}") for number in range(OWNER_ROOM)]
    with _host_stopped(system):
        incarnation = new_id()
        asyncio.run(_say_hello(system, incarnation))
        _fill(system, threads, _UNTIMED)
        asyncio.run(drive(system.url, system.host_token, incarnation, drivers=OWNER_ROOM, turns=_UNTIMED))
        for count in drivers:
            turns = turns_each * count
            accepted_per_s = _fill(system, threads, turns)
            by_drivers[str(count)] = _row(chapter, system, incarnation, count, turns)
            by_drivers[str(count)]["messages_per_s"] = round(accepted_per_s, 1)
    for thread_id in threads:
        system.close(thread_id)
    return chapter


def _row(chapter: Chapter, system: System, incarnation: str, drivers: int, turns: int) -> dict[str, object]:
    control = [system.pids["control"]]
    postgres = [pid for pid in processes.tree(system.up_pid) if processes.role_of(pid) == "postgres"]
    before = (processes.cpu_s(control), processes.cpu_s(postgres), time.process_time(), time.perf_counter())
    tally = asyncio.run(drive(system.url, system.host_token, incarnation, drivers=drivers, turns=turns))
    after = (processes.cpu_s(control), processes.cpu_s(postgres), time.process_time(), time.perf_counter())
    spent = [later - earlier for earlier, later in zip(before, after, strict=True)]
    per_turn_ms = [round(one * 1000 / turns, 2) for one in spent[:3]]
    per_s = round(tally.turns / spent[3], 1)
    whole = Summary.of(tally.turn_ms)
    chapter.rows.append(
        (str(drivers), str(turns), f"{per_s:.1f}", f"{whole.p50:.1f}", f"{whole.p99:.1f}", *map(str, per_turn_ms))
    )
    return {
        "turns": turns,
        "turns_per_s": per_s,
        "turn_ms": whole.as_json(),
        "cpu_ms_per_turn": dict(zip(("control", "postgres", "driver"), per_turn_ms, strict=True)),
        "call_ms": {name: Summary.of(took).as_json() for name, took in sorted(tally.call_ms.items())},
        "empty_claims": tally.empty_claims,
    }


def _fill(system: System, threads: list[str], turns: int) -> float:
    """Let so many messages wait, evenly in all conversations; returns how many were accepted per second."""
    began = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        sent = [
            pool.submit(system.client.submit, threads[number % len(threads)], "bench", idempotency_key=new_id())
            for number in range(turns)
        ]
        for one in sent:
            one.result()
    return turns / (time.perf_counter() - began)


async def _say_hello(system: System, incarnation: str) -> None:
    """The drivers are the host now. Its own next heartbeat is answered *superseded*, and `up` starts it anew."""
    beat = HostHeartbeat(
        incarnation=incarnation,
        version=turnkeeper.__version__,
        capacity=CAPACITY,
        provisioner="local",
        state="ready",
    )
    connection = await Connection.open(system.url)
    try:
        answer = await connection.call(
            "POST", "/v1/agent/hosts/local/heartbeat", system.host_token, beat.model_dump_json().encode()
        )
    finally:
        connection.close()
    if answer.get("superseded"):
        raise BenchError("the drivers' incarnation of the host was refused")


@contextlib.contextmanager
def _host_stopped(system: System) -> Generator[None]:
    os.kill(system.pids["host"], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(system.pids["host"], signal.SIGCONT)
