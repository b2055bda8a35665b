"""What a provisioner is told at its start. Where it listens is for whoever runs the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turnkeeper.domain.settings import Limits, SandboxTiming


@dataclass(frozen=True)
class ProvisionerSettings:
    """`directory` is the data directory: `owners/`, `sandboxes/`, `snapshots/` and `fences/` lie in it.

    `public_keys` are the control plane's signing keys, PEM by `kid`. `secrets_file` None: values come from `environ`.
    `isolated` False is `--unsafe-no-isolation` (K-08).
    """

    directory: Path
    admin_token: str = field(repr=False)
    public_keys: Mapping[str, str] = field(default_factory=dict[str, str])
    isolated: bool = True
    secrets_file: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timing: SandboxTiming = field(default_factory=SandboxTiming)
    limits: Limits = field(default_factory=Limits)
    log_level: str = "info"
    create_timeout_s: float = 30.0
    lookup_timeout_s: float = 10.0
    upkeep_interval_s: float = 30.0
