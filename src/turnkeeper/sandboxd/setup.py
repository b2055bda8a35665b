"""Setup commands: run one after the other before the session opens, each below a keeper of its own."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from turnkeeper.kit.stop import Deadline
from turnkeeper.sandboxd.agent import Tail
from turnkeeper.sandboxd.processes import Keeper, Reaper, StartError, Stdio
from turnkeeper.wire.sandbox import SetupCommand, SetupResult

_KILL_S = 5.0
_START_FAILED_EXIT = 127
_ENDED_EXIT = -9


@dataclass(frozen=True)
class SetupRunner:
    """Runs setup commands. `may_start` is asked in the step that starts one; `on_keeper` hears of each keeper at once."""

    reaper: Reaper
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    tail_bytes: int
    may_start: Callable[[], bool]
    on_keeper: Callable[[Keeper], None]

    async def run(self, commands: tuple[SetupCommand, ...]) -> list[SetupResult]:
        """Run them in order up to the first that fails; nothing of a command outlives it."""
        results: list[SetupResult] = []
        for command in commands:
            results.append(await self._run_one(command))
            if results[-1].exit != 0:
                break
        return results

    async def _run_one(self, command: SetupCommand) -> SetupResult:
        if not self.may_start():
            return SetupResult(command=command.command, exit=_ENDED_EXIT, output_tail="the turn was ended")
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        tail = Tail(read_fd, self.tail_bytes)
        try:
            keeper = await Keeper.start(
                self.reaper,
                command.command,
                cwd=self.cwd,
                env=self.env,
                stdio=Stdio(nowhere, write_fd, write_fd),
                on_spawned=self.on_keeper,
            )
        except StartError as error:
            tail.close()
            return SetupResult(command=command.command, exit=_START_FAILED_EXIT, output_tail=str(error))
        finally:
            os.close(write_fd)
            os.close(nowhere)
        return await self._watch(command, keeper, tail)

    async def _watch(self, command: SetupCommand, keeper: Keeper, tail: Tail) -> SetupResult:
        timed_out = False
        try:
            async with asyncio.timeout(command.timeout_s):
                await asyncio.shield(keeper.exited)
        except TimeoutError:
            timed_out = True
        await keeper.kill(Deadline.after(_KILL_S))
        await keeper.wait_exited(0.5)
        text = tail.text()
        tail.close()
        exit_status = keeper.exit_status if keeper.exit_status is not None else _ENDED_EXIT
        return SetupResult(command=command.command, exit=exit_status, timed_out=timed_out, output_tail=text)
