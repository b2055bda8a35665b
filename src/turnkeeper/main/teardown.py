"""Ends what outlives `up` on purpose, for somebody who will not start it again, such as a demo."""

from turnkeeper.main.paths import DataDirectory
from turnkeeper.provisioner.backends.local.ending import end_processes
from turnkeeper.provisioner.backends.local.records import BadRecordError, Places, read_record, sandbox_names

SANDBOX_ENDS_WITHIN_S = 15.0


def end_sandboxes(data: DataDirectory) -> list[str]:
    """End every sandbox of a data directory whose `up` has stopped; one line for each that could not be shown to be gone."""
    if not data.sandboxes.is_dir():
        return []
    complaints: list[str] = []
    for name in sandbox_names(data.sandboxes):
        places = Places(data.sandboxes / name)
        try:
            record = read_record(places)
            left = None if record is None else end_processes(places, record, SANDBOX_ENDS_WITHIN_S)
        except BadRecordError as error:
            left = str(error)
        if left is not None:
            complaints.append(f"sandbox {name}: {left}")
    return complaints
