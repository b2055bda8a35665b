"""The crash matrix: scenario × failpoint × side × mode × {once, always}; then recovery to rest, and the promises.

`make test-crash` runs every cell; `make test` runs those that `CRASH_SEED` draws. Proves: D-03, D-05, F-01, F-02, F-03, F-04,
F-05, F-06, F-07, H-02, H-03, H-04, H-05, L-05, L-06, L-11, R-01, R-02, R-03, R-05, C-04, A-03, A-05.
"""

import random

import pytest

from crash.drill import Cell, Drill, DrillProduct, failing, ready, seed
from crash.judge import judge, let_go
from crash.scenarios import EXTRA, POINTS, SCENARIOS, carry_on, cells, reached_by
from turnkeeper.kit.failpoint import Phase, Point

pytestmark = pytest.mark.timeout(300)

DRAWN = 10
ALL = cells()
_SAMPLE = set(random.Random(seed()).sample(range(len(ALL)), DRAWN))


@pytest.fixture(name="well")
def _well(product: DrillProduct) -> DrillProduct:
    ready(product)
    return product


def _parameters() -> list[object]:
    return [
        pytest.param(name, cell, id=f"{name}-{cell}", marks=() if number in _SAMPLE else pytest.mark.crash)
        for number, (name, cell) in enumerate(ALL)
    ]


@pytest.mark.parametrize(("name", "cell"), _parameters())
def test_the_promises_hold(name: str, cell: Cell, well: DrillProduct, request: pytest.FixtureRequest) -> None:
    """Whatever fails, however: no prompt twice, one writer, nothing stuck, and a record that is true."""
    drill = Drill(well)
    steps = SCENARIOS[name](drill)
    next(steps)
    with failing(well, *EXTRA.get(name, ()), cell) as arms:
        carry_on(steps)
    ready(well)
    judge(drill)
    let_go(drill)
    request.node.user_properties.append(("hits", well.plan.hits(arms[-1])))


@pytest.mark.crash
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_comes_to_the_points_that_it_is_for(name: str, well: DrillProduct) -> None:
    """A cell whose point is never reached would prove nothing."""
    drill = Drill(well)
    reached = reached_by(drill, name)
    judge(drill)
    let_go(drill)
    wanted = {(point, phase) for point in POINTS[name] for phase in Phase}
    assert wanted <= reached, sorted(f"{point} {phase}" for point, phase in wanted - reached)


def test_every_point_has_a_scenario() -> None:
    """A point that no scenario reaches fails the suite."""
    covered = {point for points in POINTS.values() for point in points}
    assert covered == set(Point), sorted(set(Point) - covered)
