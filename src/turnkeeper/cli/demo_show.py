"""Runs the demo and shows it: the stream, the run table, what changed, and where the page is."""

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections.abc import Generator
from pathlib import Path

from turnkeeper.cli.output import say, say_json
from turnkeeper.cli.runs import print_changes, print_runs
from turnkeeper.cli.stream import Printer
from turnkeeper.client.owner import OwnerClient
from turnkeeper.kit.clock import system_clock
from turnkeeper.main.demo import DemoReport, converse
from turnkeeper.main.hints import command
from turnkeeper.main.paths import default_data_directory
from turnkeeper.main.up import Running, UpSettings, run_up

DEFAULT_PORT = 8420


class _Ended(Exception):  # noqa: N818 - no error: the demo has done its work and `up` may stop
    pass


def run_demo(*, once: bool, data: Path | None, port: int | None, unsafe_no_isolation: bool, as_json: bool) -> int:
    """The exit status: 0 if everything that the demo promises happened."""
    started = system_clock.monotonic()
    reports: list[DemoReport] = []

    async def show(running: Running) -> None:
        start_ms = round((system_clock.monotonic() - started) * 1000, 1)
        if not as_json:
            say(f"everything runs after {start_ms / 1000:.1f} s; the page is at {running.url}")
        key = running.data.owner_key.read_text().strip()
        with OwnerClient(running.url, key) as client:
            try:
                report = await asyncio.to_thread(_converse, client, running, as_json=as_json)
            except asyncio.CancelledError:
                client.interrupt()  # its thread would go on with the talk, and the end would wait for it
                raise
        reports.append(report)
        _summary(report, running, start_ms, once=once, as_json=as_json)
        if once or report.broken:
            raise _Ended

    with _data_directory(data, once=once) as directory:
        settings = UpSettings.of_environment(
            directory,
            address="127.0.0.1",
            port=_free_port(port, once=once),
            capacity=4,
            unsafe_no_isolation=unsafe_no_isolation,
            end_sandboxes=once or data is None,
        )
        with contextlib.suppress(_Ended):
            run_up(settings, on_ready=show)
    if not reports:
        say("the demo was stopped before its conversation had ended", err=True)
    return 1 if not reports or reports[0].broken else 0


def _converse(client: OwnerClient, running: Running, *, as_json: bool) -> DemoReport:
    printer = Printer()

    def on_turn(number: int, what: str, text: str) -> None:
        if not as_json:
            printer.finish_line()
            say(f"\nturn {number}: {what}", bold=True)
            for line in text.splitlines():
                say(f"> {line}", fg="cyan")

    def on_event(event: object) -> None:
        from turnkeeper.client.owner import StreamEvent

        if not as_json and isinstance(event, StreamEvent):
            printer.show(event.kind, event.data)

    report = converse(client, running.data.workspace, on_turn, on_event)
    printer.finish_line()
    return report


def _summary(report: DemoReport, running: Running, start_ms: float, *, once: bool, as_json: bool) -> None:
    if as_json:
        say_json({**report.as_json(), "start_ms": start_ms, "page": running.url})
        return
    say()
    print_runs([turn.run for turn in report.turns])
    for number, turn in enumerate(report.turns, start=1):
        say(f"turn {number}: first text after {turn.first_text_ms} ms, ended after {turn.took_ms} ms")
        if turn.run.snapshot:
            print_changes(turn.run.snapshot.unavailable_why, turn.run.snapshot.changes)
    for line in report.broken:
        say(f"not as promised: {line}", fg="red", err=True)
    say()
    if once:
        say(f"The page was at {running.url}; without --once it stays up.")
    elif not report.broken:
        say(f"The page: {running.link}   (opens once; Ctrl-C stops everything)")
        say(f"More:     {command('chat hello', running.data, running.url)}")


@contextlib.contextmanager
def _data_directory(given: Path | None, *, once: bool) -> Generator[Path]:
    """The given directory; with --once a fresh one that is removed afterwards; else one beside the default of `up`."""
    if given is not None:
        yield given
    elif once:
        fresh = Path(tempfile.mkdtemp(prefix="turnkeeper-demo-"))
        try:
            yield fresh
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    else:
        yield default_data_directory().with_name("turnkeeper-demo")


def _free_port(given: int | None, *, once: bool) -> int:
    if given is not None:
        return given
    if once:
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return 0
    return DEFAULT_PORT
