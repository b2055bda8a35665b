"""Fixtures of the provisioner's tests. Nothing here outlives its test: not a sandbox, not a directory."""

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from provisioner.serving import ADMIN, Served, Signing, end_everything, serve
from turnkeeper.provisioner.settings import ProvisionerSettings


@pytest.fixture(scope="session")
def signing() -> Signing:
    return Signing()


@pytest.fixture
def settings(tmp_path: Path, signing: Signing) -> Generator[ProvisionerSettings]:
    """Of a data directory that is emptied of sandboxes at the end."""
    made = ProvisionerSettings(
        directory=tmp_path / "data",
        admin_token=ADMIN,
        public_keys=signing.public_keys,
        environ={"GIVEN_SECRET": "s3cret-value", "OTHER_SECRET": "another-value"},
    )
    made.directory.mkdir(mode=0o700)
    yield made
    end_everything(made)
    shutil.rmtree(made.directory, ignore_errors=True)


@pytest.fixture
def served(settings: ProvisionerSettings) -> Generator[Served]:
    """A provisioner with the local backend and the stand-in manager."""
    with serve(settings) as running:
        yield running
