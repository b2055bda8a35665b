"""Fixtures that every folder with a provisioner takes into its conftest. Nothing here outlives its test: not a sandbox, not a directory."""

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from provisioner.serving import ADMIN, Signing, end_everything
from turnkeeper.provisioner.settings import ProvisionerSettings


@pytest.fixture(scope="session")
def signing() -> Signing:
    """The control plane's keys."""
    return Signing()


@pytest.fixture
def create_timeout_s() -> float:
    """How long a backend may take to create a sandbox; a folder may say otherwise."""
    return 30.0


@pytest.fixture
def settings(tmp_path: Path, signing: Signing, create_timeout_s: float) -> Generator[ProvisionerSettings]:
    """Of a data directory that is emptied of sandboxes at the end."""
    made = ProvisionerSettings(
        directory=tmp_path / "data",
        admin_token=ADMIN,
        public_keys=signing.public_keys,
        environ={"GIVEN_SECRET": "s3cret-value", "OTHER_SECRET": "another-value"},
        create_timeout_s=create_timeout_s,
    )
    made.directory.mkdir(mode=0o700)
    yield made
    end_everything(made)
    shutil.rmtree(made.directory, ignore_errors=True)
