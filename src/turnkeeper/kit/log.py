"""Process logs: structlog events with fields, as JSON lines or as text for a person.

Importing this module is cheap; structlog is imported by `configure` or by the first event. Values of keys that name a
secret, and any text that holds one of our own secrets (known by its prefix), are replaced before anything is written.
An exception is told by its class and by where it was raised. Its message stays out: it may quote whatever was being worked
on, a row, a body or a prompt (E-02).
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

if TYPE_CHECKING:
    from structlog.typing import Processor

REDACTED: Final = "[redacted]"
SECRET_PREFIXES: Final = ("tk_", "tkw_", "tkh_", "tkp_", "tks_")

_SECRET_KEY = re.compile(
    r"(?:^|[^a-z])(?:token|secret|authorization|password|passwd|cookie|credential|api_?key|dsn|private_?key)s?(?:$|[^a-z])",
    re.IGNORECASE,
)
_HARMLESS_SUFFIX = ("_hash", "_sha256", "_id", "_name", "_names", "_count", "_type", "_s", "_at", "_path", "_file")
# 20 characters: a secret of ours has 43 after its prefix, a word in prose after `tk_` has fewer.
_SECRET_TEXT = re.compile(r"\btk[whps]?_[A-Za-z0-9_-]{20,}")
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
# What every event has; a field of this name that an event passes would be lost.
OWN_FIELDS: Final = ("event", "level", "logger", "process", "time")
LEVELS: Final = ("debug", "info", "warning", "error")

_configured = False
_opened: TextIO | None = None  # the file that we opened ourselves, closed by the next `configure`


def configure(
    process: str, level: str = "info", *, json: bool = True, stream: TextIO | None = None, path: Path | None = None
) -> None:
    """Send this process's events to `stream` (default: stderr) or appended to the file `path`.

    `process` becomes a field of every event. `level` is debug, info, warning or error.
    """
    global _configured, _opened
    if level not in LEVELS:
        raise ValueError(f"log level is one of {', '.join(LEVELS)}; got {level!r}")
    structlog = _structlog()
    before, _opened = _opened, path.open("a", encoding="utf-8", buffering=1) if path is not None else None
    renderer: Any = structlog.processors.JSONRenderer(ensure_ascii=True, default=str) if json else _render_text
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _stamp(process),
            _tell_exception,
            redact,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=_Lines(_opened or stream)),
        cache_logger_on_first_use=False,
    )
    _configured = True
    _tell_uncaught()
    if before is not None:
        before.close()


class Logger:
    """A named source of events. Methods take the event's name (past tense, snake case) and its fields."""

    __slots__ = ("_fields", "_name")

    def __init__(self, name: str, fields: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._fields: dict[str, Any] = dict(fields or {})

    def bind(self, **fields: Any) -> "Logger":
        """The same source with more fields on every event."""
        return Logger(self._name, {**self._fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        """For whoever looks for a fault."""
        self._emit("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Something that belongs to the normal course."""
        self._emit("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something that the product gets over by itself, and an operator may want to know."""
        self._emit("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something that failed for somebody."""
        self._emit("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled. For defects, not for expected failures."""
        self._emit("error", event, {**fields, "exc_info": True})

    def _emit(self, method: str, event: str, fields: dict[str, Any]) -> None:
        if not _configured:
            configure(process="turnkeeper")
        log = _structlog().get_logger()
        getattr(log, method)(event, logger=self._name, **{**self._fields, **fields})


def get_logger(name: str) -> Logger:
    """The logger called `name`: the module's subject, such as `runner.heartbeat`."""
    return Logger(name)


def bind_context(**fields: Any) -> None:
    """Add fields to every later event of this thread or task, such as the id of the request that it serves."""
    _structlog().contextvars.bind_contextvars(**fields)


def clear_context() -> None:
    """Forget the fields of `bind_context`."""
    _structlog().contextvars.clear_contextvars()


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: replace what is or may hold a secret, at any depth."""
    for key in list(event):
        event[key] = REDACTED if _names_secret(key) and event[key] is not None else _scrub(event[key])
    return event


def redact_text(text: str) -> str:
    """`text` with our own secrets and any bearer credential replaced."""
    return _BEARER.sub(rf"\1 {REDACTED}", _SECRET_TEXT.sub(REDACTED, text))


def _names_secret(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None and not key.lower().endswith(_HARMLESS_SUFFIX)


def _scrub(value: object, depth: int = 0) -> object:
    if isinstance(value, str):
        return redact_text(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth > 8:
        return "[too deep]"
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {
            str(key): REDACTED if _names_secret(str(key)) and item is not None else _scrub(item, depth + 1)
            for key, item in items
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_scrub(item, depth + 1) for item in cast("list[object]", value)]
    if isinstance(value, bytes | bytearray):
        return f"[{len(value)} bytes]"
    return redact_text(str(value))


def _stamp(process: str) -> "Processor":
    def add(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        event["process"] = process
        return event

    return add


def _tell_uncaught() -> None:
    """What nobody caught would be printed with its message (E-02). Whoever has a hook of their own keeps it."""
    import threading

    log = get_logger("uncaught")

    def of_process(kind: type[BaseException], failure: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, failure, trace)
        else:
            log.error("process_broke", exc_info=failure)

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = args.thread.name if args.thread is not None else None
            log.error("thread_broke", thread=name, exc_info=args.exc_value)

    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = of_process
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = of_thread


def _tell_exception(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    given = event.pop("exc_info", None)
    failure = given if isinstance(given, BaseException) else sys.exc_info()[1] if given else None
    if failure is not None:
        event["exception"] = tell_exception(failure)
    return event


def tell_exception(failure: BaseException) -> str:
    """Class and frames of an exception and of what led to it, the last one at the end; no messages.

    A class whose messages hold nothing but our own words, names and ids says so by `is_safe_to_log`.
    """
    import traceback

    parts: list[str] = []
    seen: set[int] = set()
    one: BaseException | None = failure
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        kind = type(one)
        said = f": {one}" if getattr(kind, "is_safe_to_log", False) else ""
        frames = "".join(traceback.format_tb(one.__traceback__))
        parts.append(f"{frames}{kind.__module__}.{kind.__qualname__}{said}")
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return "\n\nwhich led to\n\n".join(reversed(parts))


def _render_text(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    fields = dict(event)
    head = [str(fields.pop(key, "")) for key in ("time", "level", "process", "event")]
    exception = fields.pop("exception", None)
    parts = [f"{key}={_plain(value)}" for key, value in sorted(fields.items())]
    line = " ".join([*head, *parts])
    text = line if exception is None else f"{line}\n{exception}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if text.isprintable() and " " not in text and text else repr(text)


class _Lines:
    """One write per event, so that lines of several processes on one stderr do not mix.

    That it cannot be written is no failure: a disk that is full of logs must not end the process that tells of something,
    nor the turn that it is about. What does not fit is lost.
    """

    def __init__(self, target: TextIO | None) -> None:
        self._given = target

    @property
    def _target(self) -> TextIO:
        return self._given or sys.stderr  # looked up for each event: whoever replaces stderr gets what follows

    def write(self, text: str) -> int:
        try:
            return self._target.write(text)
        except (OSError, ValueError):  # a full disk, a reader that is gone, or a file closed at the interpreter's end
            return 0

    def flush(self) -> None:
        try:
            self._target.flush()
        except (OSError, ValueError):
            return


def _structlog() -> Any:
    """structlog, imported at the first use.

    Its console module imports rich when rich is installed, which triples the time of the import (0.35 s) for something
    that is never drawn here; so rich is hidden from it for that moment. `configure` runs before threads start.
    """
    hidden = "structlog" not in sys.modules and "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        if hidden:
            sys.modules.pop("rich", None)
    return structlog
