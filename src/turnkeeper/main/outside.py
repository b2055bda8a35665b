"""What the control plane asks of the provisioner, as its use cases want it: bounded, and unknown where there is no answer."""

from collections.abc import Sequence

from turnkeeper.client.http import CallError, ClientError
from turnkeeper.client.provisioner_admin import ProvisionerAdmin
from turnkeeper.domain.settings import SandboxTiming
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.services.context import Deleted, Lacks, NotDeleted

CHECK_S = 2.0
CHECKED_FOR_S = 3.0
CHECKS_MAX = 1000


class ProvisionerDeleter:
    """`services.context.SandboxDeleter` over HTTP. Bounded by the cleanup's whole time (C-06)."""

    def __init__(self, client: ProvisionerAdmin, timing: SandboxTiming) -> None:
        self._client = client
        self._timing = timing

    async def delete(self, sandbox_id: str, *, lease_generation: int) -> Deleted | NotDeleted:
        """Anything but a confirmed delete is *not deleted*: unknown concludes nothing (K-05)."""
        try:
            await self._client.delete(
                sandbox_id, lease_generation=lease_generation, timeout_s=self._timing.cleanup_timeout_s
            )
        except ClientError as error:
            return NotDeleted(f"the provisioner answered {error.status} {error.code}")
        except CallError as error:
            return NotDeleted(str(error))
        return Deleted()


class ProvisionerCommands:
    """`services.context.CommandCheck` over HTTP. An answer is good for three seconds: a list of agents asks for each."""

    def __init__(self, client: ProvisionerAdmin, clock: Clock = system_clock) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[tuple[str, tuple[str, ...], tuple[str, ...]], tuple[float, Lacks]] = {}

    async def missing(self, command: Sequence[str], programs: Sequence[str], secrets: Sequence[str]) -> Lacks:
        """What is missing; nothing where the provisioner does not answer."""
        question = (command[0], tuple(programs), tuple(secrets))
        now = self._clock.monotonic()
        known = self._known.get(question)
        if known is not None and now - known[0] < CHECKED_FOR_S:
            return known[1]
        try:
            said = await self._client.missing(*question, timeout_s=CHECK_S)
        except CallError:
            return Lacks()
        answer = Lacks(program=said.missing, secrets=said.secrets)
        if len(self._known) >= CHECKS_MAX:
            self._known.clear()
        self._known[question] = (now, answer)
        return answer
