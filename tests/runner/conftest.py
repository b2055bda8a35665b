"""Peers over real HTTP, and a turn in this process or in a child of its own."""

import io
import json
from collections.abc import Callable, Generator
from typing import Any

import pytest

from runner.peers import Peers, running_peers
from turnkeeper.kit.log import configure


@pytest.fixture
def peers() -> Generator[Peers]:
    """Well-behaved peers, until the test says otherwise."""
    with running_peers() as running:
        yield running


@pytest.fixture
def written() -> Generator[io.StringIO]:
    """The log of this process."""
    stream = io.StringIO()
    configure("worker", stream=stream)
    yield stream
    configure("turnkeeper")


@pytest.fixture
def logged(written: io.StringIO) -> Callable[[str], list[dict[str, Any]]]:
    """What this process has logged under a name."""

    def of(name: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, written.getvalue().splitlines()) if line["event"] == name]

    return of
