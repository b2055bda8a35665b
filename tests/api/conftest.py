"""A server with a database of its own, and an installation behind it."""

from collections.abc import Generator

import pytest

from api.server import control_server
from api.world import World


@pytest.fixture
def world(dsn: str) -> Generator[World]:
    """A server on `dsn`, one administrator, one agent, one host."""
    with control_server(dsn, heartbeat_s=0.5) as server:
        opened = World(server, dsn)
        try:
            yield opened
        finally:
            opened.close()
