"""Event streams over real connections: cut, resumed, from the future, after a drop, slow, many, and without signals."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import pytest

from api.reading import Frame, reading
from api.server import control_server
from api.world import Json, Turn, World, problem
from turnkeeper.api.settings import ApiSettings
from turnkeeper.client.owner import OwnerClient

Path = Callable[[World, Json], str]


def _conversation(_world: World, run: Json) -> str:
    return f"/v1/conversations/{run['thread_id']}/events"


def _run(_world: World, run: Json) -> str:
    return f"/v1/runs/{run['id']}/events"


def _stored(world: World, run: Json, *, of_run: bool = False) -> list[tuple[int, str, Json]]:
    if of_run:
        rows = world.execute("SELECT seq, kind, data FROM events WHERE run_id = %s ORDER BY seq", run["id"])
    else:
        rows = world.execute("SELECT seq, kind, data FROM events WHERE thread_id = %s ORDER BY seq", run["thread_id"])
    return [(row["seq"], row["kind"], row["data"]) for row in rows]


def _told(frames: list[Frame]) -> list[tuple[int | None, str, Json]]:
    """Stored events among the frames, without what every frame carries beside its data."""
    return [
        (frame.seq, frame.kind, {k: v for k, v in frame.data.items() if k not in {"run_id", "created_at"}})
        for frame in frames
        if frame.kind not in {"snapshot", "gap"}
    ]


def _begin(world: World) -> tuple[Json, Turn]:
    run = world.owner.submit(world.owner.conversation()["thread_id"])["run"]
    turn = world.claim()
    turn.prepare()
    turn.admit()
    return run, turn


def _end(turn: Turn) -> None:
    turn.settle("done")
    turn.finish()


@pytest.mark.parametrize("path", [_conversation, _run])
def test_a_client_that_is_cut_misses_nothing(shared_world: World, path: Path) -> None:
    """Case: F09. 1,000 events with heartbeats between them; cut every 7 frames, every other time inside a frame."""
    run, turn = _begin(shared_world)
    pieces = [f"{n} " + "ä😀\n" * (n % 50) for n in range(1000)]
    heard = threading.Event()

    def write() -> None:
        for first in range(0, 1000, 40):
            turn.texts(*pieces[first : first + 40])
            if first == 480:
                assert heard.wait(30)  # nothing more until the reader has heard a heartbeat in the silence
        _end(turn)

    writer = threading.Thread(target=write)
    writer.start()
    frames: list[Frame] = []
    cuts = 0
    last: int | None = None
    while not (frames and frames[-1].kind == "end"):
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        with reading(
            shared_world.server.port, path(shared_world, run) + "?after=0", shared_world.owner.key, headers
        ) as reader:
            reader.commented = heard
            got = reader.bytes_of(7, extra=11 * (cuts % 2))
            assert got[0].kind == "snapshot"
        frames += got
        last = frames[-1].seq if frames[-1].seq is not None else last
        cuts += 1
        assert cuts < 1000
    writer.join()
    assert _told(frames) == _stored(shared_world, run, of_run=path is _run)
    assert "".join(frame.data["text"] for frame in frames if frame.kind == "text") == "".join(pieces)
    assert cuts > 100


@pytest.mark.parametrize("path", [_conversation, _run])
@pytest.mark.parametrize("last", ["99999999", "9" * 300, "-1", "abc", "0x10", "1.5", "١", "1;drop", " "])
def test_an_id_that_cannot_be_ours_starts_again(shared_world: World, path: Path, last: str) -> None:
    """Case: F09. From the future or garbage in `Last-Event-ID`: everything again, announced by `restart`."""
    run = shared_world.turn("a", "b")
    headers = {"Last-Event-ID": last.encode().decode("latin-1")}
    with reading(shared_world.server.port, path(shared_world, run), shared_world.owner.key, headers) as reader:
        frames = reader.until("end")
    assert frames[0].kind == "snapshot"
    assert frames[0].data["restart"] is True
    assert _told(frames) == _stored(shared_world, run)


@pytest.mark.parametrize("after", ["abc", "-1", "1.5", "", "0x10", "1%00", "%D9%A1"])
def test_a_garbage_after_is_refused(shared_world: World, after: str) -> None:
    """Case: F09, F14. A program wrote it: it is told what would be right."""
    run = shared_world.turn()
    for path in (_conversation, _run):
        found = problem(shared_world.owner.http.get(f"{path(shared_world, run)}?after={after}"), 400, "bad_request")
        assert found["field"] == "after"


@pytest.mark.parametrize("path", [_conversation, _run])
def test_dropped_events_are_told_as_a_gap(shared_world: World, path: Path) -> None:
    """Case: F09. The oldest events were dropped: one `gap` with its bounds, then everything that is stored."""
    run = shared_world.turn(*[f"t{n}" for n in range(20)])
    _drop(shared_world, run, upto=10)
    with reading(shared_world.server.port, path(shared_world, run) + "?after=3", shared_world.owner.key) as reader:
        frames = reader.until("end")
    gaps = [frame for frame in frames if frame.kind == "gap"]
    assert [(gap.data["from"], gap.data["to"]) for gap in gaps] == [(4, 10)]
    assert frames.index(gaps[0]) == 1
    assert _told(frames) == _stored(shared_world, run)


def test_the_end_arrives_where_all_was_dropped(world: World) -> None:
    """Case: F09. The end of a run whose events are no longer stored is made again from the run."""
    run = world.turn("a")
    last = len(_stored(world, run))
    world.owner.submit(run["thread_id"], "next")
    _drop(world, run, upto=last)
    with reading(world.server.port, _run(world, run), world.owner.key) as reader:
        frames = list(reader.frames())
    assert [frame.kind for frame in frames] == ["snapshot", "gap", "end"]
    assert frames[-1].data["status"] == "completed"
    assert frames[-1].data["run_id"] == run["id"]


def test_the_end_arrives_for_one_who_comes_after_it(shared_world: World) -> None:
    """Case: F09. Also for a reader that has it already; then the stream closes."""
    run = shared_world.turn("a")
    last = _stored(shared_world, run)[-1][0]
    for after in (None, 0, last - 1, last):
        query = "" if after is None else f"?after={after}"
        with reading(shared_world.server.port, _run(shared_world, run) + query, shared_world.owner.key) as reader:
            frames = list(reader.frames())
            assert reader.ended
        assert frames[-1].kind == "end"
        assert frames[-1].seq == last
        assert [frame.kind for frame in frames].count("end") == 1


def test_our_own_client_ends_for_one_who_comes_after_the_end(shared_world: World) -> None:
    """Case: F09. It once dropped an `end` that was not new, and asked again and again."""
    run = shared_world.turn("a")
    last = _stored(shared_world, run)[-1][0]
    with contextlib.closing(OwnerClient(shared_world.server.url, shared_world.owner.key)) as client:
        for after in (last - 1, last, last + 1000):
            assert [event.kind for event in client.run_events(run["id"], after=after)][-1] == "end"


def test_a_conversation_shows_the_run_in_hand_from_its_beginning(world: World) -> None:
    """Without a place of its own a reader gets the snapshot, then the live run whole; earlier runs are in the lists."""
    first = world.turn("old")
    run = world.owner.submit(first["thread_id"], "second")["run"]
    turn = world.claim()
    turn.prepare()
    turn.admit()
    turn.texts("new")
    with reading(world.server.port, _conversation(world, run), world.owner.key) as reader:
        frames = reader.until("text")
        assert frames[0].data["conversation"]["live_run_id"] == run["id"]
        assert frames[0].data["run"]["status"] == "running"
        assert {frame.data["run_id"] for frame in frames[1:]} == {run["id"]}
        assert frames[1].kind == "message"
        _end(turn)
        reader.until("end")
    with reading(world.server.port, _conversation(world, run), world.owner.key) as reader:
        snapshot = reader.bytes_of(1, 0)[0]
    assert snapshot.data["run"] is None
    assert snapshot.data["after"] == len(_stored(world, run))


def test_a_run_is_told_its_own_events_alone(world: World) -> None:
    """A second message of the same conversation, queued meanwhile, is in the conversation's stream only."""
    run, turn = _begin(world)
    queued = world.owner.submit(run["thread_id"], "queued")["run"]
    turn.texts("mine")
    _end(turn)
    with reading(world.server.port, _run(world, run), world.owner.key) as reader:
        frames = list(reader.frames())
    assert {frame.data["run_id"] for frame in frames[1:]} == {run["id"]}
    assert _told(frames) == _stored(world, run, of_run=True)
    assert queued["id"] in {row["run_id"] for row in map(dict, _rows(world, run))}


def test_readers_hold_no_connection_and_share_the_reads(world: World) -> None:
    """Case: F03. 40 readers of one conversation, a pool of 8: everything else answers, and nothing idles in a transaction."""
    run, turn = _begin(world)
    with _many(world, _conversation(world, run), 40) as got:
        before = _reads(world)
        for n in range(20):
            turn.texts(f"t{n}")
            began = time.monotonic()
            world.owner.good("GET", "/v1/runs")
            assert time.monotonic() - began < 1
        idle = world.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%%'"
        )
        assert idle == 0
        assert got.wait("t19")
        assert _reads(world) - before <= 60  # one read for each wake-up, not one for each reader
        _end(turn)
    assert all(text == "".join(f"t{n}" for n in range(20)) for text in got.texts())


def test_a_slow_reader_delays_nobody(world: World) -> None:
    """Case: F03. A reader that takes nothing while 20 MB pass costs nobody anything, and gets it all when it reads."""
    run, turn = _begin(world)
    path = _conversation(world, run)
    with reading(world.server.port, path + "?after=0", world.owner.key, rcvbuf=4096) as slow:
        with reading(world.server.port, path + "?after=0", world.owner.key) as quick:
            for n in range(40):
                turn.texts(*[f"{n}-{m} " + "x" * 50_000 for m in range(10)])
            _end(turn)
            assert _told(quick.until("end")) == _stored(world, run)
        assert _told(slow.until("end")) == _stored(world, run)


def test_lost_signals_are_made_good(dsn: str) -> None:
    """Case: F04. Nothing is ever signalled: events and the end are seen within 5 s all the same."""
    with control_server(dsn, listen_to_signals=False) as server:
        world = World(server, dsn)
        run, turn = _begin(world)
        with reading(server.port, _conversation(world, run), world.owner.key) as reader:
            reader.until("run")
            for words in ("one", "two"):
                began = time.monotonic()
                turn.texts(words)
                while (frame := reader.until("text", 6)[-1]).data["text"] != words:
                    pass
                assert frame.data["text"] == words
                assert time.monotonic() - began < 5
        world.close()


def test_silence_has_a_heartbeat(world: World) -> None:
    """A comment comes in each interval without events (0.5 s here, 10 s by default)."""
    thread_id = world.owner.conversation()["thread_id"]
    with reading(world.server.port, f"/v1/conversations/{thread_id}/events", world.owner.key) as reader:
        reader.bytes_of(1, 0)
        end = time.monotonic() + 2.3
        while time.monotonic() < end and reader.comments < 4:
            with pytest.raises(TimeoutError):
                next(reader.frames(0.3))
        assert reader.comments >= 3


def test_a_reader_that_leaves_leaves_nothing(world: World) -> None:
    """Its feed, its place and its number in the metrics are gone soon after the connection."""
    thread_id = world.owner.conversation()["thread_id"]
    with reading(world.server.port, f"/v1/conversations/{thread_id}/events", world.owner.key) as reader:
        reader.bytes_of(1, 0)
        assert _metric(world, "turnkeeper_stream_feeds") == 1
    end = time.monotonic() + 5
    while _metric(world, "turnkeeper_stream_feeds") or _metric(
        world, 'turnkeeper_stream_readers{stream="conversation"}'
    ):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_stream_ends_soon_after_its_key(dsn: str) -> None:
    """A revoked key opens no request at once; a stream that it opened ends with the next look."""
    with control_server(dsn, settings=ApiSettings(stream_recheck_s=0.2), heartbeat_s=0.1) as server:
        world = World(server, dsn)
        thread_id = world.owner.conversation()["thread_id"]
        made = world.owner.good("POST", "/v1/keys", {"name": "x"})
        with reading(server.port, f"/v1/conversations/{thread_id}/events", made["key"]) as reader:
            reader.bytes_of(1, 0)
            world.owner.http.delete(f"/v1/keys/{made['id']}")
            assert list(reader.frames(5)) == []
            assert reader.ended
        world.close()


def test_other_peoples_streams_are_not_there(shared_world: World) -> None:
    """404 for an id of somebody else's, for one that does not exist, and for what is no id."""
    run = shared_world.turn()
    other = shared_world.add_owner("eve", role="owner")
    for path in (
        _conversation(shared_world, run),
        _run(shared_world, run),
        "/v1/runs/x/events",
        "/v1/conversations/..%2f/events",
    ):
        problem(other.http.get(path), 404, "not_found")
        problem(other.http.get(path, headers={"Accept": "application/json"}), 404, "not_found")


def test_pages_of_events(shared_world: World) -> None:
    """The same events as JSON, page by page."""
    run = shared_world.turn(*[f"t{n}" for n in range(25)])
    for path in (_conversation, _run):
        found: list[Json] = []
        cursor: str | None = None
        while True:
            params: dict[str, Any] = {"limit": 7, **({} if cursor is None else {"cursor": cursor})}
            page = shared_world.owner.good(
                "GET", path(shared_world, run), params=params, headers={"Accept": "application/json"}
            )
            found += page["items"]
            cursor = page["next"]
            if cursor is None:
                break
        assert [(event["seq"], event["kind"], event["data"]) for event in found] == _stored(shared_world, run)
    problem(
        shared_world.owner.http.get(
            _run(shared_world, run), params={"cursor": "x"}, headers={"Accept": "application/json"}
        ),
        400,
        "bad_request",
    )


def _drop(world: World, run: Json, *, upto: int) -> None:
    world.execute("DELETE FROM events WHERE thread_id = %s AND seq <= %s", run["thread_id"], upto)
    world.execute("UPDATE event_counters SET dropped_before = %s WHERE thread_id = %s", upto + 1, run["thread_id"])


def _rows(world: World, run: Json) -> list[Json]:
    return [
        {"run_id": str(row["run_id"])}
        for row in world.execute("SELECT run_id FROM events WHERE thread_id = %s", run["thread_id"])
    ]


def _metric(world: World, name: str) -> float:
    for line in world.client().get("/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def _reads(world: World) -> float:
    return _metric(world, 'turnkeeper_stream_reads_total{why="signal"}')


class _Many:
    """Readers in threads, and what each has put together."""

    def __init__(self, world: World, path: str, number: int) -> None:
        self._texts: list[list[str]] = [[] for _ in range(number)]
        self._threads = [threading.Thread(target=self._read, args=(world, path, n), daemon=True) for n in range(number)]
        self._connected = threading.Barrier(number + 1, timeout=20)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self._connected.wait()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def texts(self) -> list[str]:
        return ["".join(texts) for texts in self._texts]

    def wait(self, last: str) -> bool:
        end = time.monotonic() + 10
        while not all(texts and texts[-1] == last for texts in self._texts):
            assert time.monotonic() < end, self._texts
            time.sleep(0.02)
        return True

    def _read(self, world: World, path: str, number: int) -> None:
        with reading(world.server.port, path, world.owner.key) as reader:
            frames = reader.frames()
            assert json.dumps(next(frames).data)
            self._connected.wait()
            for frame in frames:
                if frame.kind == "text":
                    self._texts[number].append(frame.data["text"])
                if frame.kind == "end":
                    return


def _many(world: World, path: str, number: int) -> _Many:
    return _Many(world, path, number)
