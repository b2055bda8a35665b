"""What the service answers besides what was asked for: one refusal type, with the reason as a stable code."""

from dataclasses import dataclass

from turnkeeper.domain.errors import ProblemCode


@dataclass(frozen=True)
class Refused:
    """Not done. `detail` is one line that names the thing; `field` names what of the request is wrong, where something is."""

    code: ProblemCode
    detail: str
    field: str | None = None


@dataclass(frozen=True)
class ExpectGeneration:
    """Delete this instance and no other. `precondition`: the request said it by If-Match (412), else by a parameter (409)."""

    generation: str
    precondition: bool = False


@dataclass(frozen=True)
class ExpectLease:
    """Delete what there is, and fence every attempt up to this lease generation (C-04)."""

    lease_generation: int


Expected = ExpectGeneration | ExpectLease
