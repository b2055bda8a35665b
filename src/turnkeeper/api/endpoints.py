"""What the endpoints of the owner API have in common: the owner, the body, the answer."""

from collections.abc import Collection
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from turnkeeper.api.authentication import admin_of_request, owner_of_request
from turnkeeper.api.bodies import read_model, require_json
from turnkeeper.api.replies import Unwanted, reply
from turnkeeper.api.settings import ApiSettings
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services

M = TypeVar("M", bound=BaseModel)


class Desk:
    """Reads requests and writes answers. The owner is known before a body is read."""

    def __init__(self, services: Services, settings: ApiSettings) -> None:
        self.services = services
        self._settings = settings

    async def owner(self, request: Request) -> Owner:
        """Who asks."""
        return await owner_of_request(self.services, request)

    async def admin(self, request: Request) -> Owner:
        """Who asks, and may."""
        return await admin_of_request(self.services, request)

    async def body(
        self, request: Request, model: type[M], *, limit: int | None = None, free_text: Collection[str] = ()
    ) -> M:
        """The body as `model`."""
        require_json(request)
        found, _ = await read_model(request, model, limit or self._settings.body_bytes_max, free_text=free_text)
        return found

    @property
    def prompt_body_bytes_max(self) -> int:
        """A body that holds the longest prompt in JSON's longest spelling; the prompt itself is measured afterwards."""
        return 6 * self.services.limits.prompt_bytes_max + 4096

    def answer(self, owner: Owner, result: BaseModel | Unwanted | None, *, status: int = 200) -> Response:
        """What a use case answered, in the owner's language."""
        return reply(result, status=status, language=owner.tongue)
