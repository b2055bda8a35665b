"""Peers over real HTTP, and a turn in this process or in a child of its own."""

from collections.abc import Generator

import pytest

from runner.peers import Peers, running_peers


@pytest.fixture
def peers() -> Generator[Peers]:
    """Well-behaved peers, until the test says otherwise."""
    with running_peers() as running:
        yield running
