"""What every use case is given: the database, the signals, the settings, and the few things outside that it may ask."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from turnkeeper.domain.settings import Limits, SandboxTiming, Timing
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.services.renewals import Renewals
from turnkeeper.services.signer import Signer
from turnkeeper.store.attempts import TokenOwner
from turnkeeper.store.signals import SignalBus
from turnkeeper.store.tx import Database


@dataclass(frozen=True)
class Deleted:
    """The sandbox is confirmed gone, or there was none."""


@dataclass(frozen=True)
class NotDeleted:
    """Unknown or refused: nothing may be concluded. `why` is for operators, without URL, token or body."""

    why: str


class SandboxDeleter(Protocol):
    """The one call of the control plane to the provisioner in this release: a cleanup's delete (C-02, K-03)."""

    async def delete(self, sandbox_id: str, *, lease_generation: int) -> Deleted | NotDeleted:
        """Delete whatever instance is found, unless a newer lease generation has found or created it. Bounded in time."""
        ...


@dataclass(frozen=True)
class Lacks:
    """What an agent cannot run without and has not, each in one line; None where nothing is missing, or it cannot be known."""

    program: str | None = None
    secrets: str | None = None


class CommandCheck(Protocol):
    """Whether an agent's programs and secrets are there: a fact of the machine that sandboxes run on."""

    async def missing(self, command: Sequence[str], programs: Sequence[str], secrets: Sequence[str]) -> Lacks:
        """What is missing. Cached by whoever answers."""
        ...


@dataclass(frozen=True)
class Services:
    """Handed to every use case. Composition roots make one; nothing here is ever replaced."""

    db: Database
    bus: SignalBus
    timing: Timing
    limits: Limits
    signer: Signer
    sandbox_timing: SandboxTiming = field(default_factory=SandboxTiming)
    sandboxes: SandboxDeleter | None = None
    """None: no provisioner is configured. Fences of scopes that never had a sandbox are cleared all the same."""
    commands: CommandCheck | None = None
    """None: nothing is said to be missing."""
    ready_made: Mapping[str, str] = field(default_factory=dict[str, str])
    """The digests of the agent definitions that come with this release, by name: what is stored as one follows the next."""
    clock: Clock = system_clock
    accepted_tokens: dict[bytes, TokenOwner] = field(default_factory=dict[bytes, TokenOwner])
    """Tokens of accepted attempts by their hash, the newest `services.auth.REMEMBERED_MAX`: facts that never change."""
    provisioner_url: str | None = None
    """What workers are told; None: each host knows its own."""
    started_s: float = field(default_factory=system_clock.monotonic)
    """Since when this control plane listens to hosts, by the monotonic clock."""
    renewals: Renewals = field(init=False)

    def __post_init__(self) -> None:
        """One queue of renewals for all who share the database."""
        object.__setattr__(self, "renewals", Renewals(self.db))
