"""Find, create, touch and delete sandboxes, each under the keyed lock of its sandbox id.

The order inside the lock is always: fence, storage, look, act. A look that gave no answer (`Unknown`) ends the request and
changes nothing (K-05). What a create leaves behind when it fails or runs out of time is ended at once, with proof; if even
that cannot be shown it is remembered as half made, and the next request ends it before it does anything else (F06).
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from turnkeeper.client.http import CallError, ConnectionFailed
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.domain.sandbox import Absent, Exited, Unknown, sandbox_id
from turnkeeper.kit import failpoint
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.ids import new_id
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.stop import Deadline
from turnkeeper.provisioner.backends.base import (
    Backend,
    CreateFailedError,
    Ended,
    EndResult,
    Instance,
    Lookup,
    Order,
    OtherGeneration,
    Shape,
)
from turnkeeper.provisioner.fences import FenceError, Fences
from turnkeeper.provisioner.live import Live, LiveInstances, NotItselfError
from turnkeeper.provisioner.locks import KeyedLocks, LockTimeoutError
from turnkeeper.provisioner.outcomes import Expected, ExpectGeneration, ExpectLease, Refused
from turnkeeper.provisioner.secret_source import SecretSource, SecretsUnavailableError
from turnkeeper.provisioner.storage import (
    Placed,
    Storage,
    StorageFailedError,
    StorageRefusedError,
    parse_directory,
)
from turnkeeper.wire.provisioner import DeleteAnswer, EnsureRequest, Sandbox
from turnkeeper.wire.sandbox import StateAnswer

log = get_logger("provisioner.service")


@dataclass(frozen=True)
class ServiceTimes:
    """Bounds of what the service waits for, in seconds."""

    lock_s: float = 30.0
    lookup_s: float = 10.0
    create_s: float = 30.0
    release_lock_s: float = 30.0
    delete_s: float = 120.0


DEFAULT_TIMES: Final = ServiceTimes()
_EXIT_LOOKS: Final = 50
_EXIT_LOOK_S: Final = 0.02


class Service:
    """See the module. One for each provisioner process."""

    def __init__(
        self,
        backend: Backend,
        storage: Storage,
        fences: Fences,
        secrets: SecretSource,
        clock: Clock,
        times: ServiceTimes = DEFAULT_TIMES,
    ) -> None:
        self.backend = backend
        self.locks = KeyedLocks()
        self.live = LiveInstances()
        self._storage = storage
        self._fences = fences
        self._secrets = secrets
        self._clock = clock
        self._times = times
        self._half_made: dict[str, str] = {}

    async def ensure(self, request: EnsureRequest) -> Sandbox | Refused:
        """Find the scope's sandbox or make it; answers when its manager does and holds the secrets that were named."""
        name = sandbox_id(request.uid, request.scope)
        try:
            secrets = self._secrets.values(request.secrets)
            shape = Shape(
                uid=request.uid,
                scope=request.scope,
                workdir=parse_directory(request.workdir).path,
                network=request.spec.network,
                programs=request.spec.programs,
                image=request.spec.image,
            )
            async with self.locks.hold(name, self._times.lock_s):
                if request.lease_generation <= (fence := self._fences.fenced(name)):
                    return _fenced(request.lease_generation, fence)
                placed = await asyncio.to_thread(
                    self._storage.materialise, request.uid, request.workdir, request.thread_id
                )
                found = await self._find_or_create(name, shape, placed, request.lease_generation)
                if isinstance(found, Refused):
                    return found
                return await self._answer(found, placed, secrets)
        except SecretsUnavailableError as error:
            return Refused(ProblemCode.CONFLICT, str(error), "secrets")
        except StorageRefusedError as error:
            code = ProblemCode.INVALID_WORKDIR if error.field == "workdir" else ProblemCode.BAD_REQUEST
            return Refused(code, str(error), error.field)
        except (StorageFailedError, FenceError) as error:
            return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, str(error))
        except LockTimeoutError as error:
            return Refused(ProblemCode.TIMEOUT, str(error))

    def without_value(self, names: Iterable[str]) -> str | None:
        """One line saying which secret has no value; None where all have one. Reads a file."""
        return self._secrets.missing(names)

    async def look(self, name: str) -> Lookup:
        """One of the four answers, in bounded time."""
        try:
            async with asyncio.timeout(self._times.lookup_s):
                return await self.backend.lookup(name)
        except TimeoutError:
            return Unknown(f"the backend gave no answer within {self._times.lookup_s:g} s")

    async def running(self, name: str, generation: str) -> Live | Refused:
        """The instance of exactly this generation, for touch, proxy and snapshot."""
        live = self.live.get(name)
        if live is None:
            match await self.look(name):
                case Instance() as instance:
                    live = await self.live.put(instance)
                case state:
                    return _not_running(name, state)
        if live.instance.generation != generation:
            return _other_generation(name, live.instance.generation)
        return live

    async def touch(self, name: str, generation: str) -> Refused | None:
        """Somebody uses this instance now."""
        live = await self.running(name, generation)
        if isinstance(live, Refused):
            return live
        live.touched_ms = self._clock.boottime_ms()
        return None

    async def delete(self, name: str, expected: Expected) -> DeleteAnswer | Refused:
        """End the sandbox, with proof (K-03, C-04). What is absent is a success, and fenced all the same."""
        try:
            async with self.locks.hold(name, self._times.release_lock_s):
                if isinstance(expected, ExpectLease):
                    await asyncio.to_thread(self._fences.fence, name, expected.lease_generation)
                match await self.look(name):
                    case Absent():
                        return DeleteAnswer(state="absent")
                    case Unknown(why):
                        return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, f"sandbox {name}: {why}")
                    case Instance(generation=generation) | Exited(generation=generation):
                        if (refused := self._unexpected(name, generation, expected)) is not None:
                            return refused
                        return await self._delete(name, generation)
        except FenceError as error:
            return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, str(error))
        except LockTimeoutError as error:
            return Refused(ProblemCode.TIMEOUT, f"{error}; nothing was deleted")

    async def end(self, name: str, generation: str) -> EndResult:
        """End one instance in bounded time. For callers that hold the lock."""
        try:
            async with asyncio.timeout(self._times.delete_s):
                failpoint.before(Point.EFFECT_END)
                result = await self.backend.end(name, generation)
                failpoint.after(Point.EFFECT_END)
        except TimeoutError:
            result = Unknown(f"the backend did not end it within {self._times.delete_s:g} s")
        if isinstance(result, Ended | Absent):
            live = self.live.get(name)
            if live is not None and live.instance.generation == generation:
                await self.live.drop(name)
        if isinstance(result, Ended) and self._half_made.get(name) == generation:
            del self._half_made[name]  # "absent" keeps the mark: a create that was given up may still succeed later
        return result

    def _unexpected(self, name: str, generation: str, expected: Expected) -> Refused | None:
        match expected:
            case ExpectGeneration(wanted, precondition) if wanted != generation:
                code = ProblemCode.PRECONDITION_FAILED if precondition else ProblemCode.GENERATION_MISMATCH
                return Refused(code, f"sandbox {name} has generation {generation}; nothing was deleted")
            case ExpectLease(lease_generation) if self._fences.found(name) > lease_generation:
                return Refused(
                    ProblemCode.FENCED,
                    f"lease generation {self._fences.found(name)} has found or created sandbox {name} since "
                    f"{lease_generation}; nothing was deleted",
                )
            case _:
                return None

    async def _delete(self, name: str, generation: str) -> DeleteAnswer | Refused:
        match await self.end(name, generation):
            case Ended():
                log.info("sandbox_deleted", sandbox_id=name, generation=generation)
                return DeleteAnswer(state="deleted")
            case Absent():
                return DeleteAnswer(state="absent")
            case OtherGeneration(current):
                return _other_generation(name, current)
            case Unknown(why):
                log.error("sandbox_not_deleted", sandbox_id=name, generation=generation, why=why)
                return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, f"sandbox {name} could not be ended: {why}")

    async def _find_or_create(
        self, name: str, shape: Shape, placed: Placed, lease_generation: int
    ) -> "_Found | Refused":
        found = await self.look(name)
        if isinstance(found, Instance) and self._half_made.get(name) == found.generation:
            if not isinstance(await self.end(name, found.generation), Ended | Absent):
                return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, f"half of sandbox {name} is left and cannot be ended")
            found = Absent()
        match found:
            case Unknown(why):
                return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, f"sandbox {name}: {why}")
            case Instance() as instance:
                return await self._find(instance, shape, placed, lease_generation)
            case Exited(generation):
                result = await self.end(name, generation)
                if not isinstance(result, Ended | Absent):
                    return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, f"the remains of sandbox {name} cannot be cleared")
                return await self._create(name, shape, placed, lease_generation)
            case Absent():
                return await self._create(name, shape, placed, lease_generation)

    async def _find(
        self, instance: Instance, shape: Shape, placed: Placed, lease_generation: int
    ) -> "_Found | Refused":
        name = instance.sandbox_id
        if differences := instance.shape.differences(shape):
            return Refused(
                ProblemCode.CONFLICT,
                f"sandbox {name} runs with another {', '.join(differences)}; it is never rebound (K-02)",
            )
        self._fences.note_found(name, lease_generation)
        live = await self.live.put(instance)
        try:
            return _Found(live, await live.state(), created=False)
        except NotItselfError:
            return Refused(ProblemCode.GENERATION_MISMATCH, f"another manager answers for sandbox {name}")
        except CallError as error:
            # it may have ended between the look and the call: only another look can say so, not the silence
            match await self.look(name):
                case Exited(generation) if generation == instance.generation:
                    await self.end(name, generation)
                    return await self._create(name, shape, placed, lease_generation)
                case Absent():
                    return await self._create(name, shape, placed, lease_generation)
                case _:
                    log.warning("manager_silent", sandbox_id=name, error_class=type(error).__name__)
                    return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, f"the manager of sandbox {name} does not answer")

    async def _create(self, name: str, shape: Shape, placed: Placed, lease_generation: int) -> "_Found | Refused":
        order = Order(name, new_id(), shape, placed.mounts)
        await self.live.drop(name)
        self._fences.note_found(name, lease_generation)
        self._half_made[name] = order.generation
        deadline = Deadline.after(self._times.create_s, self._clock)
        try:
            async with asyncio.timeout(self._times.create_s):
                failpoint.before(Point.EFFECT_CREATE)
                live = await self.live.put(await self.backend.create(order))
                failpoint.after(Point.EFFECT_CREATE)
                state = await live.state(deadline.remaining())
        except CreateFailedError as error:
            code = ProblemCode.AGENT_UNAVAILABLE if error.refused else ProblemCode.UPSTREAM_UNAVAILABLE
            return await self._undo(order, code, error.reason)
        except (TimeoutError, CallError, NotItselfError) as error:
            return await self._undo(order, ProblemCode.UPSTREAM_UNAVAILABLE, await self._why_not_ready(name, error))
        del self._half_made[name]
        log.info("sandbox_created", sandbox_id=name, generation=order.generation, boot_id=state.boot_id)
        return _Found(live, state, created=True)

    async def _why_not_ready(self, name: str, error: Exception) -> str:
        """A manager that ended at its start is told from one that is silent. Its launcher needs a moment to say so."""
        if isinstance(error, TimeoutError) or (isinstance(error, ConnectionFailed) and error.kind == "Timeout"):
            return f"its manager gave no answer within {self._times.create_s:g} s"
        for _ in range(_EXIT_LOOKS):
            if isinstance(ended := await self.look(name), Exited):
                return f"it ended at once ({ended.cause})"
            await self._clock.sleep(_EXIT_LOOK_S)
        return f"its manager gave no answer ({type(error).__name__})"

    async def _undo(self, order: Order, code: ProblemCode, why: str) -> Refused:
        """End what a failed create left, with proof; without proof it stays marked as half made."""
        tail = await self.backend.tail(order.sandbox_id)
        result = await self.end(order.sandbox_id, order.generation)
        log.error(
            "sandbox_not_created",
            sandbox_id=order.sandbox_id,
            generation=order.generation,
            why=why,
            log_tail=tail,
            ended=isinstance(result, Ended | Absent),
        )
        return Refused(code, f"sandbox {order.sandbox_id} was not created: {why}")

    async def _answer(self, found: "_Found", placed: Placed, secrets: dict[str, str]) -> Sandbox | Refused:
        live, state = found.live, found.state
        try:
            await live.push(secrets, state.boot_id)
        except CallError as error:
            log.warning("secrets_not_pushed", sandbox_id=live.instance.sandbox_id, error_class=type(error).__name__)
            return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, "the sandbox did not take the secrets")
        live.touched_ms = self._clock.boottime_ms()
        return Sandbox(
            sandbox_id=live.instance.sandbox_id,
            generation=live.instance.generation,
            boot_id=state.boot_id,
            mark_ms=state.mark_ms,
            created=found.created,
            cwd=f"{live.instance.workspace}/{placed.cwd}",
            home=f"{live.instance.workspace}/{placed.home}",
        )


@dataclass(frozen=True)
class _Found:
    live: Live
    state: StateAnswer
    created: bool


def _fenced(lease_generation: int, fence: int) -> Refused:
    return Refused(ProblemCode.FENCED, f"lease generation {lease_generation} is fenced by a cleanup up to {fence}")


def _other_generation(name: str, current: str) -> Refused:
    return Refused(ProblemCode.GENERATION_MISMATCH, f"sandbox {name} has generation {current}")


def _not_running(name: str, state: Lookup) -> Refused:
    match state:
        case Unknown(why):
            return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, f"sandbox {name}: {why}")
        case Exited(generation, cause):
            return Refused(ProblemCode.GONE, f"generation {generation} of sandbox {name} has ended ({cause})")
        case _:
            return Refused(ProblemCode.NOT_FOUND, f"there is no sandbox {name}")
