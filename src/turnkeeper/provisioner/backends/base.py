"""The contract of a backend: where sandboxes come from, and what may be believed of its answers (K-01, K-05).

* The sandbox id is the name; at most one instance of a name is current. `lookup` answers for that one.
* Every instance has a generation of its own, and `end` names the one that it means. It says `Ended` only when nothing of
  the instance can act any more; whatever it cannot show is `Unknown`, and authorises nothing.
* `create` may fail or be given up half way. What it leaves behind is found by `lookup` or `leftovers`, and ended.
* The service holds the keyed lock of a sandbox id around every call but `inventory` and `leftovers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from turnkeeper.domain.sandbox import Absent, Exited, Unknown

Network = Literal["none", "host"]


@dataclass(frozen=True)
class Shape:
    """What a sandbox is made for and out of. A live one never changes its shape (K-02)."""

    uid: str
    scope: str
    workdir: str
    network: Network = "none"
    programs: tuple[str, ...] = ()
    image: str | None = None

    def differences(self, other: "Shape") -> tuple[str, ...]:
        """The names of the fields that differ."""
        return tuple(name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True)
class Mounts:
    """The two directories that hold persistent data (K-09), as they are on the storage."""

    workspace: Path
    skills: Path


@dataclass(frozen=True)
class Order:
    """An instance that is to be made. The generation is drawn before anything is done, so that its remains can be named."""

    sandbox_id: str
    generation: str
    shape: Shape
    mounts: Mounts


@dataclass(frozen=True)
class Manager:
    """How the sandbox manager of one instance is reached."""

    url: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Instance:
    """One running instance. `workspace` is where the owner workspace is for the processes inside."""

    sandbox_id: str
    generation: str
    shape: Shape
    manager: Manager
    workspace: str
    created_at: datetime


Lookup = Instance | Exited | Absent | Unknown
"""Running, exited (with cause), absent, unknown (K-05)."""


@dataclass(frozen=True)
class Row:
    """One sandbox of the inventory. `shape` and `created_at` are None where they cannot be read."""

    sandbox_id: str
    state: Lookup
    shape: Shape | None = None
    created_at: datetime | None = None


@dataclass(frozen=True)
class Ended:
    """Nothing of this instance can act any more."""


@dataclass(frozen=True)
class OtherGeneration:
    """Another instance has the name; nothing was done."""

    current: str


EndResult = Ended | Absent | OtherGeneration | Unknown


class CreateFailedError(Exception):
    """No instance was made, or only half of one. `reason` is one line for an operator; it holds no secret."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refused = refused
        """The order itself is at fault: trying again changes nothing."""


class Backend(Protocol):
    """See the module."""

    @property
    def name(self) -> str:
        """`local`, `docker` or `kubernetes`."""
        ...

    def check(self) -> tuple[str, ...]:
        """Check that sandboxes can be made here; raises one clear line if not. Returns what it does not isolate or limit."""
        ...

    async def create(self, order: Order) -> Instance:
        """Start an instance; it may not answer yet. `CreateFailedError`."""
        ...

    async def lookup(self, sandbox_id: str) -> Lookup:
        """The current instance of this name."""
        ...

    async def end(self, sandbox_id: str, generation: str) -> EndResult:
        """End exactly this instance and prove it. Ending what has ended is `Absent` and clears its remains away."""
        ...

    async def inventory(self) -> tuple[Row, ...]:
        """Everything that has a name here."""
        ...

    async def leftovers(self) -> tuple[tuple[str, str], ...]:
        """`(sandbox id, generation)` of instances that exist beside the current one of their name, or without a record."""
        ...

    async def tail(self, sandbox_id: str) -> str:
        """The last lines that the instance logged, for an operator; empty where there are none."""
        ...

    def missing(self, command: str, programs: Sequence[str]) -> str | None:
        """One line saying what an agent's command lacks here; None where it would be found, or where it cannot be known."""
        ...

    async def close(self) -> None:
        """Let go of what this process holds. Sandboxes live on."""
        ...
