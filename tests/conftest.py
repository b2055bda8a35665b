"""Fixtures of every folder. The server is started by the first test that asks for it."""

import os
from collections.abc import AsyncGenerator, Generator

import pytest
from hypothesis import settings

from harness.postgres import DatabaseClock, PostgresServer, Sessions, postgres_server, sessions_on
from turnkeeper.store.pool import open_database
from turnkeeper.store.tx import Database

# How long one example takes says how busy the machine is. What hangs is ended by each test's own limit.
settings.register_profile("turnkeeper", deadline=None)
settings.load_profile("turnkeeper")

CRASH_SEED = os.environ.get("CRASH_SEED", "1")


def pytest_report_header() -> str:
    """Whoever sees a cell of the crash matrix fail can draw the same ones again."""
    return f"crash matrix: CRASH_SEED={CRASH_SEED} draws the cells of the short suite"


@pytest.fixture(scope="session", name="postgres_server")
def _postgres_server() -> Generator[PostgresServer]:
    """The PostgreSQL of this test session."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def dsn(postgres_server: PostgresServer) -> Generator[str]:
    """A migrated database of this test's own."""
    name = postgres_server.create_database()
    yield name
    postgres_server.give_back(name)


@pytest.fixture
def empty_dsn(postgres_server: PostgresServer) -> Generator[str]:
    """A database of this test's own without any schema."""
    name = postgres_server.create_database(empty=True)
    yield name
    postgres_server.give_back(name)


@pytest.fixture
async def database(dsn: str) -> AsyncGenerator[Database]:
    """`dsn`, opened as the product opens it."""
    async with open_database(dsn, min_size=1, max_size=8) as opened:
        yield opened


@pytest.fixture
async def sessions(dsn: str) -> AsyncGenerator[Sessions]:
    """Raw sessions on `dsn` beside the code under test."""
    async with sessions_on(dsn) as opened:
        yield opened


@pytest.fixture
def database_clock(dsn: str) -> DatabaseClock:
    """The clock of `dsn`'s SQL."""
    return DatabaseClock(dsn)
