"""A server with its pages, an installation behind it, and a browser."""

from collections.abc import Generator

import pytest

from api.server import control_server
from api.world import World
from web.chromium import Browser, chromium


@pytest.fixture
def world(dsn: str) -> Generator[World]:
    """A server on `dsn`, one administrator, one agent, one host."""
    with control_server(dsn) as server:
        opened = World(server, dsn)
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture
def browser() -> Generator[Browser]:
    """A Chromium of this test's own; the test is skipped where there is none."""
    with chromium() as opened:
        yield opened
