"""What a host is started with, and what of it a child is told. Secrets are kept out of `repr`."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.settings import Limits, Timing
from turnkeeper.wire.base import Request

SPARES_DEFAULT = 2


@dataclass(frozen=True)
class HostSettings:
    """`data` is the data directory; the host's own state lies in `host/<name>` below it.

    `provisioner` names the provisioner that this host's sandboxes come from, and is shown to operators; workers reach
    it at `provisioner_url` unless the execution spec names another address. `lease_ttl_s` is the lifetime that claims ask
    for; None leaves it to the control plane. `child_log` None: children write their log
    to the host's own stderr.
    """

    name: str
    token: str = field(repr=False)
    control_url: str
    provisioner_url: str
    data: Path
    provisioner: str = "local"
    capacity: int = Limits().trees_per_host
    labels: dict[str, str] = field(default_factory=dict[str, str])
    spares: int = SPARES_DEFAULT
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)
    lease_ttl_s: int | None = None
    log_level: str = "info"
    child_log: Path | None = None

    def __post_init__(self) -> None:
        """Raises `SettingRefused` with one line for each value that makes no sense."""
        lines = [*self.timing.validate(), *self.limits.validate()]
        if not self.name or "/" in self.name or "\0" in self.name or self.name in (".", "..") or len(self.name) > 100:
            lines.append(f"the host's name is {self.name!r}; it must be a file name of at most 100 characters")
        if self.capacity <= 0:
            lines.append(f"capacity is {self.capacity}; it must be a positive number of trees")
        if self.spares < 0:
            lines.append(f"spares is {self.spares}; it must not be negative")
        if lines:
            raise SettingRefused(*lines)

    @property
    def state(self) -> Path:
        """Where this host keeps what it must know after a restart."""
        return self.data / "host" / self.name


class ChildSettings(Request):
    """What a spare child is told before there is a turn: nothing secret."""

    host: str
    control_url: str
    provisioner_url: str
    timing: dict[str, Any] = Field(description="the fields of domain.settings.Timing")
    log_level: str

    @classmethod
    def of(cls, settings: HostSettings) -> "ChildSettings":
        """The part of a host's settings that its children need."""
        return cls(
            host=settings.name,
            control_url=settings.control_url,
            provisioner_url=settings.provisioner_url,
            timing=dataclasses.asdict(settings.timing),
            log_level=settings.log_level,
        )

    def read_timing(self) -> Timing:
        """The durations as the domain's type; `SettingRefused` where they break a relation."""
        timing = Timing(**self.timing)
        lines = timing.validate()
        if lines:
            raise SettingRefused(*lines)
        return timing
