"""What all messages share: they are frozen; a request with a field that nobody knows is refused, an answer's is ignored."""

from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, StringConstraints

Id = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$", max_length=36)
]
"""A UUID in lower-case canonical form."""

Moment = AwareDatetime
"""A time with its offset (F12)."""


class Request(BaseModel):
    """A message that a server receives."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(BaseModel):
    """A message that a client receives: a newer server may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True)
