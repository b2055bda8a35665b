"""The product's processes, and what each costs, read from /proc."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# In this order: the first word that is found in the command line names the role.
_ROLES = (
    ("runner.child", "child"),
    ("launcher.py", "launcher"),
    ("keeper.py", "keeper"),
    ("turnkeeper.sandboxd", "sandboxd"),
    ("scripted", "agent"),
    ("turnkeeper control", "control"),
    ("turnkeeper provisioner", "provisioner"),
    ("turnkeeper host", "host"),
    (" up ", "up"),
)


@dataclass(frozen=True)
class Process:
    """One live process at one moment. Memory in KiB: proportional (shared pages divided among their users) and private."""

    pid: int
    role: str
    pss_kib: int
    private_kib: int


def tree(root: int) -> list[int]:
    """`root` and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and (parent := parent_of(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found, left = list[int](), [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def parent_of(pid: int) -> int | None:
    """The parent's pid; None where the process is gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time that these processes have used so far, with children that they have waited for. Gone ones count nothing."""
    ticks = 0
    for pid in pids:
        fields = _stat(pid)
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS_PER_S


def look(pids: Iterable[int]) -> list[Process]:
    """Role and memory of each that still lives."""
    seen = (_look(pid) for pid in pids)
    return [process for process in seen if process is not None]


def role_of(pid: int) -> str:
    """What this process is; `other` where its command line says nothing, `gone` where it has ended."""
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        name = (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return "gone"
    if name in ("postgres", "bwrap", "git"):
        return name
    return next((role for word, role in _ROLES if word in f"{command} "), "other")


def _look(pid: int) -> Process | None:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    kib = {words[0].rstrip(":"): int(words[1]) for line in lines if len(words := line.split()) == 3}
    if "Pss" not in kib:
        return None
    return Process(pid, role_of(pid), kib["Pss"], kib["Private_Clean"] + kib["Private_Dirty"])


def _stat(pid: int) -> list[str] | None:
    """The fields after the command name, which may hold anything."""
    try:
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
