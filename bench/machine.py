"""Where it was measured. A number without its machine says nothing."""

import os
import platform
from pathlib import Path
from typing import Any

_POLICIES = {os.SCHED_OTHER: "normal", os.SCHED_BATCH: "batch", os.SCHED_FIFO: "fifo", os.SCHED_RR: "round robin"}


def describe(data: Path) -> dict[str, Any]:
    """Processor, kernel, Python, the file system below `data` (its fsync is in every number), how this process is
    scheduled, and the load of the machine before: a number that was measured beside other work says so."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": _file_system(data),
        "scheduling": _POLICIES.get(os.sched_getscheduler(0), "unknown"),
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(data: Path) -> str:
    device = data.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return "unknown"
