"""`turnkeeper`: the root command, what all commands share, and how every error ends as one line and an exit status.

Exit status: 0 done, 1 failed (one line on stderr says what), 2 used wrongly.
"""

import errno
import io
import os
import re
import sys
from typing import Any, Final, TextIO

import click

from turnkeeper import __version__
from turnkeeper.cli.lazy import LazyGroup
from turnkeeper.cli.output import OutputRefused, say

COMMANDS = {
    "demo": ("turnkeeper.cli.demo:demo", "Start everything and run a conversation of three turns in a sandbox."),
    "up": ("turnkeeper.cli.up:up", "Run everything on this machine: database, control plane, provisioner, host."),
    "chat": ("turnkeeper.cli.chat:chat", "Talk with an agent; the stream is shown as it comes."),
    "conversations": ("turnkeeper.cli.conversations:conversations", "List, show and close conversations."),
    "runs": ("turnkeeper.cli.runs:runs", "List and show runs, follow their events, cancel them."),
    "agents": ("turnkeeper.cli.agents:agents", "List, show, add, reset and remove agent definitions."),
    "login": ("turnkeeper.cli.users:login", "Print a fresh one-time link to the page."),
    "users": ("turnkeeper.cli.users:users", "List and add users (administrators)."),
    "keys": ("turnkeeper.cli.keys:keys", "Create, list and revoke API keys."),
    "hosts": ("turnkeeper.cli.hosts:hosts", "List hosts, create and revoke their tokens (administrators)."),
    "db": ("turnkeeper.cli.db:db", "Upgrade or check the database."),
    "doctor": ("turnkeeper.cli.doctor:doctor", "Hold what the database records against the product's rules."),
    "control": ("turnkeeper.cli.processes:control", "Process: the control plane."),
    "provisioner": ("turnkeeper.cli.processes:provisioner", "Process: the provisioner of sandboxes."),
    "host": ("turnkeeper.cli.processes:host", "Process: the host that runs turns."),
    "sandboxd": ("turnkeeper.cli.processes:sandboxd", "Process: the manager inside a sandbox."),
}


_WORD_MAX: Final = 120
_LONG_WORD: Final = re.compile(rf"\S{{{_WORD_MAX + 40},}}")


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Example: turnkeeper demo --once",
)
@click.version_option(__version__, "--version", prog_name="turnkeeper")
def root() -> None:
    """Turnkeeper runs AI-agent turns in retained sandboxes.

    A prompt reaches the agent at most once; one Workdir has one writer; nothing stays stuck.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(args))


def run(args: list[str] | None = None) -> int:
    """Run the command line; the exit status is returned. Nobody sees a traceback: a fault of ours is named and logged as one."""
    _open_closed_streams()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal's encoding lacks is no reason to end
            stream.reconfigure(errors="replace" if stream is sys.stdin else "backslashreplace")
    return _flushed(_run(args))


def _run(args: list[str] | None) -> int:
    args = sys.argv[1:] if args is None else args
    wrong = next((one for one in args if not one.isprintable() and any("\ud800" <= c <= "\udfff" for c in one)), None)
    if wrong is not None:
        _complain(f"error: {wrong[:80]!a} is not text: arguments must be UTF-8")
        return 2
    try:
        status: Any = root.main(args=args, prog_name="turnkeeper", standalone_mode=False)
    except click.exceptions.Abort:
        _complain("stopped")
        return 1
    except click.UsageError as error:
        return _used_wrongly(error)
    except click.ClickException as error:
        _complain(f"error: {error.format_message()}")
        return error.exit_code
    except Exception as error:  # the last door: whatever comes is one line
        if isinstance(error, OutputRefused) or (isinstance(error, OSError) and _is_broken(sys.stdout)):
            return _unwritable(error)
        return _unexpected(error)
    return status if isinstance(status, int) else 0


def _open_closed_streams() -> None:
    """Somebody may start us without an output (`>&-`): what would be said there goes nowhere, and is no fault of ours."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - for the life of the process


def _flushed(status: int) -> int:
    """`status`, or 1 with one line where the output does not take what was said: at the interpreter's end nobody could tell."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up(sys.stdout)
        return status or _unwritable(error)
    return status


def _unwritable(error: OSError) -> int:
    """The status, and one line unless it is only that the reader of our output went away, as `| head` does."""
    if error.errno != errno.EPIPE:
        _complain(f"error: the output cannot be written ({os.strerror(error.errno or 0)})")
    return 1


def _is_broken(stream: TextIO) -> bool:
    """Whether what could not be written is still waiting to be."""
    try:
        stream.flush()
    except OSError:
        return True
    return False


def _give_up(stream: TextIO) -> None:
    """What waits in `stream` goes nowhere: the interpreter would try it again at its end, and fail with a trace of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _complain(text: str) -> None:
    """One line on stderr, as far as that takes it."""
    try:
        say(text, err=True)
    except OSError:
        _give_up(sys.stderr)


def _used_wrongly(error: click.UsageError) -> int:
    """One line: what is wrong, and where help is. A group that is called without a command shows its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return 2
    command = error.ctx.command_path if error.ctx is not None else "turnkeeper"
    message = _LONG_WORD.sub(lambda found: found[0][:_WORD_MAX] + "…", " ".join(error.format_message().split()))
    _complain(f"error: {message.rstrip('.')} (see {command} --help)")
    return 2


def _unexpected(error: Exception) -> int:
    """One line for what the known families of errors say of themselves; a hint how to see more for the rest."""
    import traceback

    from turnkeeper.domain.errors import OperationalError, OptionRefused, SettingRefused

    if os.environ.get("TURNKEEPER_DEBUG"):
        traceback.print_exception(error)
    elif isinstance(error, SettingRefused):
        for line in error.lines:
            _complain(f"error: {line}")
    elif isinstance(error, OperationalError):
        _complain(f"error: {error}")
    else:
        hint = "set TURNKEEPER_DEBUG=1 to see where it came from"
        _complain(f"error: unexpected {type(error).__name__}: {error} ({hint})")
    return 2 if isinstance(error, OptionRefused) else 1
