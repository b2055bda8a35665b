"""Fixtures of the provisioner's tests."""

from collections.abc import Generator

import pytest

from provisioner.fixtures import create_timeout_s, settings, signing
from provisioner.serving import Served, serve
from turnkeeper.provisioner.settings import ProvisionerSettings

__all__ = ["create_timeout_s", "settings", "signing"]  # fixtures


@pytest.fixture
def served(settings: ProvisionerSettings) -> Generator[Served]:
    """A provisioner with the local backend and the stand-in manager."""
    with serve(settings) as running:
        yield running
