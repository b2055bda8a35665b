"""What a use case may answer besides its result. Closed unions: `api` maps each to a status and a problem code.

None of these is an error of ours: somebody asked for something that the facts do not allow.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from turnkeeper.domain.errors import ErrorCode, ProblemCode


class RefusedWhy(StrEnum):
    """Why a worker's or host's write changed nothing."""

    LEASE = "lease"
    """Attempt, lease generation or source state differ, or the lease has expired (L-11). Final."""
    ACCEPTED = "accepted"
    """The child has taken the turn, so it can be neither released nor handed out again (H-04)."""
    CANCELLED = "cancelled"
    """The run was asked to stop: the worker stops its turn and finishes."""
    ACTIVATION = "activation"
    """The request names an activation, a fence or an instance that is not the current one."""
    MEMBERSHIP = "membership"
    """The membership is in a state in which no turn may use it."""
    ADMITTED = "admitted"
    """Something was admitted, so nothing may be abandoned (R-02)."""


@dataclass(frozen=True)
class Refused:
    """409: nothing was changed, and repeating changes nothing."""

    why: RefusedWhy
    detail: str = ""


@dataclass(frozen=True)
class Rejected:
    """409: this run must not be executed; the worker finishes it as failed with `code` (T-05)."""

    code: ErrorCode
    detail: str


@dataclass(frozen=True)
class Gone:
    """410: gone for good."""

    detail: str


@dataclass(frozen=True)
class NotFound:
    """404: there is no such thing, or it is somebody else's, which is the same to the one who asks."""

    what: str


@dataclass(frozen=True)
class Invalid:
    """422: the request is well formed and makes no sense. `field` names the part, `detail` says what would be right."""

    code: ProblemCode
    field: str
    detail: str
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Conflict:
    """409 of the owner API: the state does not allow it. `extra` are further members of the problem."""

    code: ProblemCode
    detail: str
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Mismatch:
    """422: the idempotency key was used with another request (F08)."""


@dataclass(frozen=True)
class ClaimsRefused:
    """503: no work is given out, because the database is not the one that was recorded (D-04)."""

    detail: str
