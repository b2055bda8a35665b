"""The control plane's client of the provisioner, with the administrative token (K-01). Belongs to one event loop."""

from collections.abc import Sequence

from turnkeeper.client.http import AsyncHttpClient, path
from turnkeeper.wire.provisioner import CommandAnswer, CommandQuestion, DeleteAnswer


class ProvisionerAdmin:
    """Every method raises `ClientError` or `ConnectionFailed`."""

    def __init__(self, url: str, token: str) -> None:
        self.http = AsyncHttpClient(url, token=token)

    async def close(self) -> None:
        """Closes every connection."""
        await self.http.close()

    async def is_alive(self, *, timeout_s: float) -> None:
        """Returns when it answers."""
        await self.http.request("GET", "/livez", timeout_s=timeout_s)

    async def delete(self, sandbox_id: str, *, lease_generation: int, timeout_s: float) -> DeleteAnswer:
        """A cleanup's delete (K-03): fences every older lease generation and deletes what it finds."""
        return await self.http.call(
            "DELETE",
            path("/v1/sandboxes/{sandbox_id}", sandbox_id=sandbox_id),
            DeleteAnswer,
            params={"lease_generation": lease_generation},
            timeout_s=timeout_s,
        )

    async def missing(
        self, command: str, programs: Sequence[str], secrets: Sequence[str], *, timeout_s: float
    ) -> CommandAnswer:
        """What an agent lacks at the provisioner."""
        question = CommandQuestion(command=command, programs=tuple(programs), secrets=tuple(secrets))
        return await self.http.call("POST", "/v1/commands/check", CommandAnswer, body=question, timeout_s=timeout_s)
