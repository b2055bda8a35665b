"""Where it was measured. A number without its machine says nothing."""

import os
import platform
from pathlib import Path
from typing import Any


def describe(data: Path) -> dict[str, Any]:
    """Processor, kernel, Python, the file system below `data` (its fsync is in every number), and the load before."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": _file_system(data),
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
