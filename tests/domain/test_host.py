"""The host machine, and who may be given a run."""

import pytest

from turnkeeper.domain.host import HostEvent, HostState, host_transition, may_take
from turnkeeper.domain.machine import Refused

R, B, D, G = HostState.READY, HostState.BACKING_OFF, HostState.DRAINING, HostState.GONE

# event: what becomes of ready, backing_off, draining, gone; None = refused
EXPECTED: dict[HostEvent, tuple[HostState | None, ...]] = {
    HostEvent.REGISTERED: (R, R, R, R),
    HostEvent.HEARD: (R, B, D, R),
    HostEvent.LAUNCH_FAILED: (B, B, D, B),
    HostEvent.LAUNCHED: (R, R, D, None),
    HostEvent.DRAIN_REQUESTED: (D, D, D, D),
    HostEvent.STOPPED: (G, G, G, G),
    HostEvent.SILENT: (G, G, G, G),
}


@pytest.mark.parametrize("event", list(HostEvent))
@pytest.mark.parametrize("index", range(4))
def test_every_state_and_event(event: HostEvent, index: int) -> None:
    """Every state x event."""
    state, wanted = (R, B, D, G)[index], EXPECTED[event][index]
    answer = host_transition(state, event)
    if wanted is None:
        assert answer == Refused(state, event)
    else:
        assert answer is wanted


def test_draining_ends_only_with_the_process() -> None:
    """A host that drains takes no new tree until it is gone or a new incarnation registers."""
    for event in HostEvent:
        answer = host_transition(D, event)
        assert answer in (D, G) or event is HostEvent.REGISTERED


@pytest.mark.parametrize("state", list(HostState))
@pytest.mark.parametrize("load", [0, 1, 2, 3])
@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("child", [False, True])
def test_may_take(state: HostState, load: int, here: bool, child: bool) -> None:
    """Proves: D-06 (the predicate). Room is counted in trees, and a live run's child is admissible where its parent is."""
    answer = may_take(state, load=load, capacity=2, tree_is_live_here=here, created_by_live_run=child)
    if state is G:
        assert not answer
    elif child:
        assert answer, "also on a full, draining or backing-off host"
    elif state is R:
        assert answer == (here or load < 2)
    else:
        assert not answer
