"""What the state directory knows of a local sandbox: one directory for each, below `sandboxes/`.

    record.json    what the instance is and which launcher it has; written before the launcher gets its orders
    secret         the manager's secret (0600)
    instance.json  the sandbox's pid 1, by the launcher
    exit.json      how it ended, by the launcher
    launcher.log   what sandbox and launcher wrote
    manager.sock   where the manager answers

A record that cannot be read, or that is not the directory's own, is an error and never "absent": somebody may have edited
it (F14), and the processes of a sandbox do not end by that.
"""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

from turnkeeper.domain.sandbox import WorkdirRefused, is_sandbox_id, parse_workdir, sandbox_id
from turnkeeper.kit.files import read_bounded, write_atomic
from turnkeeper.kit.ids import is_id
from turnkeeper.kit.procs import ProcessId
from turnkeeper.provisioner.backends.base import Shape

_BYTES_MAX: Final = 256 << 10


class BadRecordError(Exception):
    """A file of the state directory is not what it must be. The text names the sandbox and the fault."""


@dataclass(frozen=True)
class Record:
    """One instance. Pids mean something only within the kernel's boot `kernel_boot`."""

    sandbox_id: str
    generation: str
    shape: Shape
    created_at: datetime
    kernel_boot: str
    launcher: ProcessId
    isolated: bool
    workspace: str

    def to_json(self) -> bytes:
        """As it is stored."""
        value = asdict(self)
        value["created_at"] = self.created_at.isoformat()
        return json.dumps(value).encode()


@dataclass(frozen=True)
class Places:
    """The files of one sandbox."""

    directory: Path

    @property
    def record(self) -> Path:
        """What the instance is."""
        return self.directory / "record.json"

    @property
    def secret(self) -> Path:
        """The manager's secret."""
        return self.directory / "secret"

    @property
    def instance(self) -> Path:
        """The sandbox's pid 1."""
        return self.directory / "instance.json"

    @property
    def exit(self) -> Path:
        """How it ended."""
        return self.directory / "exit.json"

    @property
    def log(self) -> Path:
        """What sandbox and launcher wrote."""
        return self.directory / "launcher.log"

    @property
    def socket(self) -> Path:
        """Where the manager answers."""
        return self.directory / "manager.sock"


def write_record(places: Places, record: Record) -> None:
    """Durably: it must be there before the launcher may act."""
    write_atomic(places.record, record.to_json())


def read_record(places: Places) -> Record | None:
    """The record; None where there is none. `BadRecordError`."""
    value = _read(places.record)
    if value is None:
        return None
    name = places.directory.name
    try:
        shape_values = value["shape"]
        shape = Shape(
            uid=_text(shape_values["uid"]),
            scope=_text(shape_values["scope"]),
            workdir=_text(shape_values["workdir"]),
            network=_network(shape_values["network"]),
            programs=tuple(_text(program) for program in shape_values["programs"]),
            image=None if shape_values["image"] is None else _text(shape_values["image"]),
        )
        record = Record(
            sandbox_id=_text(value["sandbox_id"]),
            generation=_text(value["generation"]),
            shape=shape,
            created_at=datetime.fromisoformat(_text(value["created_at"])),
            kernel_boot=_text(value["kernel_boot"]),
            launcher=_process(value["launcher"]),
            isolated=bool(value["isolated"]),
            workspace=_text(value["workspace"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadRecordError(f"the record of sandbox {name} is not readable: {type(error).__name__}") from error
    if record.sandbox_id != name or sandbox_id(shape.uid, shape.scope) != name:
        raise BadRecordError(f"the record of sandbox {name} belongs to another sandbox")
    if not is_id(record.generation) or isinstance(parse_workdir(shape.workdir), WorkdirRefused):
        raise BadRecordError(f"the record of sandbox {name} names a generation or a Workdir that is none")
    return record


@dataclass(frozen=True)
class SandboxProcesses:
    """Pid 1 of the sandbox and its parent outside (bubblewrap), as this machine numbers them."""

    init: ProcessId
    outer: ProcessId


def read_processes(places: Places) -> SandboxProcesses | None:
    """What the launcher has recorded; None where it did not get to it. `BadRecordError`."""
    value = _read(places.instance)
    if value is None:
        return None
    try:
        return SandboxProcesses(init=_process(value["init"]), outer=_process(value["outer"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadRecordError(f"instance.json of sandbox {places.directory.name} is not readable") from error


def read_exit(places: Places) -> int | None:
    """The wait status of bubblewrap: exit code, or minus the signal; None where the launcher did not get to say."""
    try:
        value = _read(places.exit)
    except BadRecordError:
        return None
    status = None if value is None else value.get("status")
    return status if isinstance(status, int) else None


def sandbox_names(root: Path) -> list[str]:
    """The names in `sandboxes/` that a sandbox of ours can have."""
    return sorted(entry.name for entry in root.iterdir() if is_sandbox_id(entry.name))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value: object = json.loads(read_bounded(path, _BYTES_MAX))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadRecordError(
            f"{path.name} of sandbox {path.parent.name} is not readable: {type(error).__name__}"
        ) from error
    if not isinstance(value, dict):
        raise BadRecordError(f"{path.name} of sandbox {path.parent.name} is not an object")
    return cast("dict[str, Any]", value)


def _process(value: dict[str, Any]) -> ProcessId:
    pid, start_ticks = value["pid"], value["start_ticks"]
    if not isinstance(pid, int) or not isinstance(start_ticks, int) or pid < 2:
        raise ValueError("not a process")
    return ProcessId(pid, start_ticks)


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("not a text")
    return value


def _network(value: object) -> Literal["none", "host"]:
    if value in ("none", "host"):
        return value
    raise ValueError("not a network")
