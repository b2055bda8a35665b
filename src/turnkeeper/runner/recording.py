"""Whether the host can remember its children: a host that cannot claims nothing (H-06).

A record is written after the claim and before the hand-over. Where that fails the claim is given back, and a few such
releases end the run as failed: so the host looks before it claims, and after a failure waits ever longer between two looks.
"""

from collections.abc import Callable

from turnkeeper.kit.log import Logger
from turnkeeper.runner.nursery import backoff_s
from turnkeeper.runner.records import ChildRecord, ChildRecords


class Recording:
    """`on_change` is called when writing begins to fail or works again."""

    def __init__(self, records: ChildRecords, log: Logger, on_change: Callable[[], None]) -> None:
        self._records = records
        self._log = log
        self._on_change = on_change
        self._failures = 0
        self._failed_since_look = False
        self.error: str | None = None
        """Why records cannot be written at the moment; None: they can, as far as is known."""

    def works(self) -> bool:
        """Look whether a record can be written. False also right after one could not: a look is no proof of the next."""
        if self._failed_since_look:
            self._failed_since_look = False
            return False
        try:
            self._records.check()
        except OSError as error:
            self._note_failure(error)
            return False
        if self._failures:
            self._log.info("child_records_recovered", failures=self._failures)
            self._failures, self.error = 0, None
            self._on_change()
        return True

    def write(self, record: ChildRecord) -> None:
        """Remember a child. Whatever it raises is noted as a failure; nothing was handed over yet."""
        try:
            self._records.write(record)
        except Exception as error:
            self._note_failure(error)
            self._failed_since_look = True
            raise

    def pause_s(self) -> float:
        """Until the next look, after a failed one."""
        return backoff_s(self._failures)

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        self.error = f"the records of children cannot be written in {self._records.directory}: {why}"
        self._log.error("child_record_failed", why=self.error, failures=self._failures)
        self._on_change()
