"""Host API: `POST /v1/agent/hosts/<host>/heartbeat` with the host's token."""

from typing import Literal

from pydantic import Field

from turnkeeper.wire.base import Answer, Id, Request

HOST_HEARTBEAT_INTERVAL_S = 10


class GoneChild(Request):
    """An attempt whose child the host found gone, by pid and start time. Only such an attempt is ended early."""

    job: Id
    attempt: Id
    lease_generation: int


class HostHeartbeat(Request):
    incarnation: Id
    version: str = Field(max_length=100)
    capacity: int = Field(gt=0)
    labels: dict[str, str] = {}
    provisioner: str = Field(max_length=200)
    state: Literal["ready", "backing_off", "draining"]
    launch_error: str | None = Field(default=None, max_length=500)
    gone: tuple[GoneChild, ...] = ()


class HostHeartbeatAnswer(Answer):
    """`superseded` says that a newer incarnation of this host has been heard: this one must stop claiming and drain."""

    superseded: bool = False
    interval_s: int = HOST_HEARTBEAT_INTERVAL_S
