"""The behavioural suite runs over every backend that this machine can have; the service in front of it is the real one.

A further backend joins by one line in `BACKENDS`: a function that makes it for a data directory, with the stand-in manager.
"""

from collections.abc import Callable, Generator

import pytest

from provisioner.fixtures import settings, signing
from provisioner.serving import Served, serve, standin_settings
from turnkeeper.provisioner.backends.base import Backend
from turnkeeper.provisioner.backends.local.backend import LocalBackend
from turnkeeper.provisioner.settings import ProvisionerSettings

__all__ = ["settings", "signing"]  # fixtures

BackendMaker = Callable[[ProvisionerSettings], Backend]


def make_local(settings: ProvisionerSettings) -> Backend:
    return LocalBackend(standin_settings(settings))


BACKENDS: dict[str, BackendMaker] = {"local": make_local}


@pytest.fixture(params=sorted(BACKENDS))
def make_backend(request: pytest.FixtureRequest) -> BackendMaker:
    """Makes the backend under test."""
    return BACKENDS[request.param]


@pytest.fixture
def create_timeout_s() -> float:
    """Deliberately bad backends never come to an end of it."""
    return 10.0


@pytest.fixture
def served(settings: ProvisionerSettings, make_backend: BackendMaker) -> Generator[Served]:
    """A provisioner with the backend under test."""
    with serve(settings, make_backend) as running:
        yield running
