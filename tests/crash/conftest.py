"""One product for all cells of a test process: what fails in it is mended, so that the next cell finds it well."""

from collections.abc import Generator

import pytest

from crash.drill import DrillProduct, define_agents, ready


@pytest.fixture(scope="session", name="product")
def _product() -> Generator[DrillProduct]:
    with DrillProduct() as running:
        ready(running)
        define_agents(running)
        yield running  # type: ignore[misc]
