"""A host: the process on a machine that claims runs and starts one child per turn (protocol.md, sections 2 and 3).

A new incarnation registers as `ready`; that by itself ends no attempt. A host that went silent is `gone`, and is back
with its next heartbeat, which also says again whether it backs off or drains.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from turnkeeper.domain.machine import Refused, step


class HostState(StrEnum):
    """Where a host is."""

    READY = "ready"
    BACKING_OFF = "backing_off"
    DRAINING = "draining"
    GONE = "gone"


class HostEvent(StrEnum):
    """What may happen to a host."""

    REGISTERED = "registered"
    """A new incarnation said hello."""
    HEARD = "heard"
    """A heartbeat of the same incarnation that reports nothing special."""
    LAUNCH_FAILED = "launch_failed"
    """Children could not be started several times in a row; `launch_error` says why (H-06)."""
    LAUNCHED = "launched"
    """A child was started again."""
    DRAIN_REQUESTED = "drain_requested"
    """It finishes its turns and takes no new tree."""
    STOPPED = "stopped"
    """It said goodbye."""
    SILENT = "silent"
    """Nothing was heard of it for too long."""


_READY, _BACKING_OFF, _DRAINING, _GONE = (
    HostState.READY,
    HostState.BACKING_OFF,
    HostState.DRAINING,
    HostState.GONE,
)

HOST_TABLE: Mapping[tuple[HostState, HostEvent], HostState] = MappingProxyType(
    {
        **{(state, HostEvent.REGISTERED): _READY for state in HostState},
        **{(state, HostEvent.STOPPED): _GONE for state in HostState},
        **{(state, HostEvent.SILENT): _GONE for state in HostState},
        (_READY, HostEvent.HEARD): _READY,
        (_BACKING_OFF, HostEvent.HEARD): _BACKING_OFF,
        (_DRAINING, HostEvent.HEARD): _DRAINING,
        (_GONE, HostEvent.HEARD): _READY,
        (_READY, HostEvent.LAUNCH_FAILED): _BACKING_OFF,
        (_BACKING_OFF, HostEvent.LAUNCH_FAILED): _BACKING_OFF,
        (_DRAINING, HostEvent.LAUNCH_FAILED): _DRAINING,
        (_GONE, HostEvent.LAUNCH_FAILED): _BACKING_OFF,
        (_READY, HostEvent.LAUNCHED): _READY,
        (_BACKING_OFF, HostEvent.LAUNCHED): _READY,
        (_DRAINING, HostEvent.LAUNCHED): _DRAINING,
        (_READY, HostEvent.DRAIN_REQUESTED): _DRAINING,
        (_BACKING_OFF, HostEvent.DRAIN_REQUESTED): _DRAINING,
        (_DRAINING, HostEvent.DRAIN_REQUESTED): _DRAINING,
        (_GONE, HostEvent.DRAIN_REQUESTED): _DRAINING,
    }
)


def host_transition(state: HostState, event: HostEvent) -> HostState | Refused[HostState, HostEvent]:
    """The next state, or `Refused`."""
    return step(HOST_TABLE, state, event)


def may_take(state: HostState, *, load: int, capacity: int, tree_is_live_here: bool, created_by_live_run: bool) -> bool:
    """Whether a host may be given a run (section 3: rooms are trees).

    `load`: distinct roots among its live attempts. A run created by a live run needs no room of its own and is always
    admissible, also on a full, draining or backing-off host: otherwise a parent could wait for a child that waits for
    the parent (D-06). `tree_is_live_here`: the run's root is already one of the load.
    """
    if state is HostState.GONE:
        return False
    if created_by_live_run:
        return True
    return state is HostState.READY and (tree_is_live_here or load < capacity)
