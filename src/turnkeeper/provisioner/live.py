"""The running instances that this process knows, each with its kept connections to the manager."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnkeeper.client.http import AsyncHttpClient, Timeouts
from turnkeeper.client.sandbox import SandboxClient
from turnkeeper.provisioner.backends.base import Instance
from turnkeeper.wire.sandbox import Secrets, StateAnswer

_STATE_TIMEOUT_S = 5.0


class NotItselfError(Exception):
    """A manager answered in the place of another: its generation is not the instance's."""


@dataclass
class Live:
    """One instance. `pushed` is what its manager holds of secrets, and in which boot."""

    instance: Instance
    http: AsyncHttpClient
    pushed_boot: str | None = None
    pushed: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    touched_ms: int = 0

    async def state(self, timeout_s: float = _STATE_TIMEOUT_S) -> StateAnswer:
        """The manager's own word. `NotItselfError`, `CallError`."""
        answer = await SandboxClient(self.http).state(timeout_s=timeout_s)
        if answer.generation != self.instance.generation:
            raise NotItselfError
        return answer

    async def push(self, values: Mapping[str, str], boot_id: str) -> None:
        """Give the manager these values besides those that it has; nothing is sent where nothing changed for this boot."""
        known = self.pushed if self.pushed_boot == boot_id else {}
        wanted = {**known, **values}
        if wanted == known:
            return
        await SandboxClient(self.http).put_secrets(Secrets(values=wanted))
        self.pushed, self.pushed_boot = wanted, boot_id


class LiveInstances:
    """By sandbox id, one each."""

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}

    def get(self, sandbox_id: str) -> Live | None:
        """The known instance of this name, if there is one."""
        return self._live.get(sandbox_id)

    def all(self) -> tuple[Live, ...]:
        """All of them."""
        return tuple(self._live.values())

    async def put(self, instance: Instance) -> Live:
        """Know this instance, in the place of any other of its name."""
        current = self._live.get(instance.sandbox_id)
        if current is not None and current.instance == instance:
            return current
        await self.drop(instance.sandbox_id)
        manager = instance.manager
        http = AsyncHttpClient(manager.url, token=manager.secret, timeouts=Timeouts(call=30, connect=5, read=30))
        live = self._live[instance.sandbox_id] = Live(instance, http)
        return live

    async def drop(self, sandbox_id: str) -> None:
        """Forget the instance and close its connections."""
        live = self._live.pop(sandbox_id, None)
        if live is not None:
            await live.http.close()

    async def close(self) -> None:
        """Close every connection."""
        for sandbox_id in tuple(self._live):
            await self.drop(sandbox_id)
