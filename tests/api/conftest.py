"""A server with a database of its own, and an installation behind it."""

from collections.abc import Generator

import pytest

from api.server import control_server
from api.world import World
from harness.postgres import PostgresServer


@pytest.fixture
def world(dsn: str) -> Generator[World]:
    """A server on `dsn`, one administrator, one agent, one host."""
    with control_server(dsn, heartbeat_s=0.5) as server:
        opened = World(server, dsn)
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture(scope="module")
def shared_world(postgres_server: PostgresServer) -> Generator[World]:
    """One world for all tests of a module that leave it as they found it, or do not mind what others left."""
    dsn = postgres_server.create_database()
    with control_server(dsn, heartbeat_s=0.5) as server:
        opened = World(server, dsn)
        try:
            yield opened
        finally:
            opened.close()
    postgres_server.give_back(dsn)
