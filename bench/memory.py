"""What the product costs in memory: proportional set size (shared pages divided among their users) by role.

Three looks at one fresh system: idle; with turns in the middle of their work; idle again, with the sandboxes of those
conversations retained. What one more costs is the difference of the totals, divided by how many there are.
"""

import json
from collections.abc import Callable
from pathlib import Path

from bench import processes
from bench.processes import Process
from bench.report import Chapter
from bench.system import CLEAN_WITHIN_S, System, wait_until
from turnkeeper.kit.ids import new_id

_ORDER = ("up", "control", "provisioner", "host", "spare", "child", "postgres", "launcher", "bwrap", "sandboxd")
_TURN_S = 25
_SPARES = 2
Look = dict[str, list[Process]]


def measure_memory(system: System, *, turns: int) -> Chapter:
    """The table has one row per role: how many, and MB of each (mean) in each look."""
    chapter = Chapter(
        "memory",
        f"Memory, PSS in MB (private in brackets): idle, {turns} live turns, {turns} retained sandboxes",
        ("process", "idle n", "each", "live n", "each", "retained n", "each"),
    )
    system.wait_spares(_SPARES)
    idle = _look(system)
    threads = [system.new_conversation(f"bench memory {number}") for number in range(turns)]
    runs = [
        system.client.submit(thread_id, f"/sleep {_TURN_S}", idempotency_key=new_id()).run.id for thread_id in threads
    ]
    wait_until(lambda: _prompts(system.ledger) >= turns, CLEAN_WITHIN_S, f"{turns} prompts")
    system.wait_spares(_SPARES + turns)
    live = _look(system)
    for run_id in runs:
        system.finish_turn(run_id)
    system.wait_spares(_SPARES)
    retained = _look(system)
    for thread_id in threads:
        system.close(thread_id)
    system.wait_sandboxes_gone()
    _fill(chapter, {"idle": idle, "live": live, "retained": retained}, turns)
    return chapter


def _look(system: System) -> Look:
    live = _children_with_a_turn(system.data)
    found: Look = {}
    for process in processes.look(processes.tree(system.up_pid)):
        role = process.role
        if role == "child" and process.pid not in live:
            role = "spare"
        found.setdefault(role, []).append(process)
    return found


def _children_with_a_turn(data: Path) -> set[int]:
    return {json.loads(file.read_bytes())["pid"] for file in data.glob("host/*/children/*.json")}


def _prompts(ledger: Path) -> int:
    return ledger.read_bytes().count(b"/sleep") if ledger.exists() else 0


def _fill(chapter: Chapter, looks: dict[str, Look], turns: int) -> None:
    roles = sorted({role for look in looks.values() for role in look}, key=_rank)
    for role in roles:
        cells: list[str] = []
        for look in looks.values():
            cells += _cells(look.get(role, []))
        chapter.rows.append((role, *cells))
    totals = {name: _mb(sum(one.pss_kib for found in look.values() for one in found)) for name, look in looks.items()}
    chapter.rows.append(("all", *(cell for total in totals.values() for cell in ("", f"{total:.1f}"))))
    live, retained = (round((totals[name] - totals["idle"]) / turns, 1) for name in ("live", "retained"))
    chapter.rows.append(("one more", "", "", "", f"{live:.1f}", "", f"{retained:.1f}"))
    chapter.numbers = {
        "turns": turns,
        "idle_total_mb": totals["idle"],
        "per_live_turn_mb": live,
        "per_retained_sandbox_mb": retained,
        "roles": {name: {role: _role(found) for role, found in look.items()} for name, look in looks.items()},
    }


def _rank(role: str) -> tuple[int, str]:
    return (_ORDER.index(role) if role in _ORDER else len(_ORDER), role)


def _cells(found: list[Process]) -> tuple[str, str]:
    if not found:
        return ("", "")
    pss, private = _mean(found, lambda one: one.pss_kib), _mean(found, lambda one: one.private_kib)
    return (str(len(found)), f"{pss:.1f} ({private:.1f})")


def _role(found: list[Process]) -> dict[str, float | int]:
    return {
        "n": len(found),
        "pss_mb_each": _mean(found, lambda one: one.pss_kib),
        "private_mb_each": _mean(found, lambda one: one.private_kib),
    }


def _mean(found: list[Process], value: Callable[[Process], int]) -> float:
    return _mb(sum(value(one) for one in found) / len(found))


def _mb(kib: float) -> float:
    return round(kib * 1024 / 1_000_000, 1)
