"""What `up` tells somebody who stops it: how many turns it waits for, and what lives on afterwards."""

from turnkeeper.client.http import AsyncHttpClient, CallError
from turnkeeper.kit.procs import is_alive
from turnkeeper.main.hints import program
from turnkeeper.main.paths import DataDirectory
from turnkeeper.provisioner.backends.local.records import BadRecordError, Places, read_record, sandbox_names
from turnkeeper.wire.public import Page, Server

ASKED_FOR_S = 2.0


async def live_turns(url: str, data: DataDirectory, host: str) -> int | None:
    """How many execution trees the host works on; None where nobody says so soon."""
    try:
        key = data.owner_key.read_text().strip()
        async with AsyncHttpClient(url, token=key) as client:
            page = await client.call("GET", "/v1/admin/servers", Page, timeout_s=ASKED_FOR_S)
            servers = [Server.model_validate(one) for one in page.items]
    except (CallError, OSError, ValueError):
        return None
    return next((one.live_trees for one in servers if one.name == host), None)


def living_sandboxes(data: DataDirectory) -> int:
    """How many sandboxes of this data directory have a launcher that lives."""
    if not data.sandboxes.is_dir():
        return 0
    count = 0
    for name in sandbox_names(data.sandboxes):
        try:
            record = read_record(Places(data.sandboxes / name))
        except BadRecordError:
            continue
        count += record is not None and is_alive(record.launcher)
    return count


def of_turns(count: int | None) -> str:
    """The first line, as soon as `up` is asked to stop."""
    if not count:
        return "stopping"
    turns = "1 turn is" if count == 1 else f"{count} turns are"
    return f"stopping: {turns} running and given time to end (Ctrl-C again ends everything at once)"


def of_cut_off(count: int) -> str | None:
    """Where somebody did not wait for turns to end."""
    if not count:
        return None
    if count == 1:
        return "1 turn was cut off: what it was doing is not finished, and its conversation may be lost"
    return f"{count} turns were cut off: what they were doing is not finished, and their conversations may be lost"


def of_ended_sandboxes(count: int) -> str:
    """The last line with `--end-sandboxes`."""
    if not count:
        return "stopped; no sandbox was left to end"
    return "stopped; 1 sandbox was ended" if count == 1 else f"stopped; {count} sandboxes were ended"


def of_sandboxes(count: int, data: DataDirectory) -> str:
    """The last line without it."""
    if not count:
        return "stopped"
    lives = "1 sandbox lives on" if count == 1 else f"{count} sandboxes live on"
    return (
        f"stopped; {lives}, so that conversations go on at the next start. To end "
        f"{'it' if count == 1 else 'them'}: {program()} up --data {data.root} --end-sandboxes, and stop it again"
    )
