"""The behavioural suite runs over every backend that this machine can have; the service in front of it is the real one.

A further backend joins by one line in `BACKENDS`: a function that makes it for a data directory, with the stand-in manager.
"""

import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from provisioner.serving import ADMIN, Served, Signing, end_everything, serve, standin_settings
from turnkeeper.provisioner.backends.base import Backend
from turnkeeper.provisioner.backends.local.backend import LocalBackend
from turnkeeper.provisioner.settings import ProvisionerSettings

BackendMaker = Callable[[ProvisionerSettings], Backend]


def make_local(settings: ProvisionerSettings) -> Backend:
    return LocalBackend(standin_settings(settings))


BACKENDS: dict[str, BackendMaker] = {"local": make_local}


@pytest.fixture(params=sorted(BACKENDS))
def make_backend(request: pytest.FixtureRequest) -> BackendMaker:
    """Makes the backend under test."""
    return BACKENDS[request.param]


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
        create_timeout_s=10,
    )
    made.directory.mkdir(mode=0o700)
    yield made
    end_everything(made)
    shutil.rmtree(made.directory, ignore_errors=True)


@pytest.fixture
def served(settings: ProvisionerSettings, make_backend: BackendMaker) -> Generator[Served]:
    """A provisioner with the backend under test."""
    with serve(settings, make_backend) as running:
        yield running
