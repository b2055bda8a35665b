"""Bytes that hurt, and lines of every size."""

import json
import sys
from pathlib import Path

import pytest

from sandboxd.manager import Manager, ManagerOptions, said

MIB = 1024 * 1024
FRAME_MAX = 8 * MIB
BAD = "\ufffd"


def texts(events: list[dict[str, object]]) -> str:
    """Everything in the events as JSON, to look for what must not be there."""
    return json.dumps(events, ensure_ascii=False)


BROKEN = [
    ("/bytes 6100 | 62", f"a{BAD}b"),  # a raw NUL
    ("/bytes 615c753030303062", f"a{BAD}b"),  # \u0000
    ("/bytes 615c756438336462", f"a{BAD}b"),  # \ud83d alone
    ("/bytes 615c756465303062", f"a{BAD}b"),  # \ude00 alone
    ("/bytes 615c75643833645c756465303062", "a😀b"),  # a pair
    ("/bytes 61f09f98 | 8062", "a😀b"),  # an emoji split over two writes
    ("/bytes 61ff62", f"a{BAD}b"),  # invalid UTF-8
    ("/bytes 61c328", f"a{BAD}("),  # a broken sequence
    ("/bytes 5c7564383364\n/bytes 5c7564653030", "😀"),  # a pair split over two chunks
    ("/say grüße 世界 🏳️‍🌈", "grüße 世界 🏳️‍🌈"),  # valid text is unchanged
]


async def test_broken_text(manager: Manager) -> None:
    """Case: F10. Each turn settles, broken parts are marked, valid ones unchanged, in events and final message."""
    worker, recorded = manager.activation(fence=1), {}
    for directive, expected in BROKEN:
        worker = worker.next()
        events = await worker.turn(directive, recorded=recorded)
        receipt = events[-1]["receipt"]
        assert receipt["outcome"] == "completed"
        assert said(events) == expected == receipt["final_message"], directive
        assert "\x00" not in texts(events)
        texts(events).encode()  # no lone surrogate
        recorded = worker.recorded(receipt)


async def test_broken_error_and_stderr(manager: Manager) -> None:
    """Case: F10. The same in an error's text and in the last lines of stderr."""
    worker = manager.activation()
    receipt = (await worker.turn("/fail-bytes 61ff5c75303030305c7564383364"))[-1]["receipt"]
    assert receipt["error_text"].startswith(f"a{BAD}{BAD}{BAD}")
    second = worker.next()
    (await second.take()).ok()
    (await second.session(recorded=worker.recorded(receipt))).ok()
    (await second.prompt("/run printf 'a\\377\\000b\\n'\n/exit 1")).ok()
    events = await second.events()
    assert "\x00" not in texts(events)
    assert events[-1]["failure"]["exit"] == 1


async def test_lines_that_are_no_messages(manager: Manager) -> None:
    """Case: F10. Garbage on stdout is said in a notice and the turn goes on; a flood of it is bounded."""
    worker = manager.activation()
    garbage = "\n".join(["/raw fffe000a", "/raw 5b5d0a", "/raw 0a", *["/raw 780a"] * 50])
    events = await worker.turn(f"{garbage}\n/say still here")
    assert said(events) == "still here"
    notices = [event["data"]["code"] for event in events if event.get("kind") == "notice"]
    assert notices == ["not_a_message"] * 20


@pytest.mark.parametrize("size", [64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, MIB, 7 * MIB, FRAME_MAX])
async def test_long_line_arrives_byte_for_byte(manager: Manager, size: int) -> None:
    """Case: F11. A line within the limit arrives whole, in events of at most 64 KiB; memory stays below three times the limit."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.session()).ok()
    before = memory_bytes(manager, "VmHWM")
    (await worker.prompt(f"/line {size}\n/say next")).ok()
    events = await worker.events()
    assert events[-1]["receipt"]["outcome"] == "completed"
    text, _, after = said(events).partition("\nnext")
    assert after == ""
    assert size - 300 < len(text) < size
    assert text == ("0123456789" * (size // 10 + 1))[: len(text)]
    assert max(len(json.dumps(event["data"])) for event in events if "data" in event) <= 64 * 1024
    assert memory_bytes(manager, "VmHWM") - before < 3 * FRAME_MAX


@pytest.mark.parametrize("size", [FRAME_MAX + 1, 40 * MIB])
async def test_line_above_the_limit(manager: Manager, size: int) -> None:
    """Case: F11. It is cut with a marker, the next line is read, and memory stays below three times the limit."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.session()).ok()
    before = memory_bytes(manager, "VmHWM")
    (await worker.prompt(f"/line {size}\n/say next")).ok()
    events = await worker.events()
    assert events[-1]["receipt"]["outcome"] == "completed"
    text = said(events)
    assert text.startswith("0123456789")
    assert text.endswith("\nnext")
    assert "[cut: " in text
    notice = next(event["data"] for event in events if event.get("kind") == "notice")
    assert notice["code"] == "line_cut"
    assert str(size) in notice["text"]
    assert memory_bytes(manager, "VmHWM") - before < 3 * FRAME_MAX


async def test_large_event_is_cut(manager: Manager) -> None:
    """Case: F11. What is no text is cut above 64 KiB, with a marker and its original size; no character is split."""
    worker = manager.activation()
    (manager.workdir / "large").write_text("😀" * 30_000)
    events = await worker.turn("/read large")
    (update,) = [event for event in events if event.get("kind") == "tool_update"]
    assert update["original_bytes"] > 120_000
    assert len(json.dumps(update["data"], ensure_ascii=False).encode()) <= 64 * 1024
    assert "… [cut: 120000 bytes]" in str(update["data"])
    assert BAD not in str(update["data"])


async def test_events_of_a_turn_are_bounded(tmp_path: Path) -> None:
    """Case: F11. A turn that never stops talking is settled; above its room the events are cut, with one notice."""
    from turnkeeper.wire.sandbox_start import SandboxLimits

    limits = SandboxLimits(turn_events_bytes_max=MIB, final_message_bytes_max=64 * 1024)
    async with Manager(tmp_path, ManagerOptions(limits=limits)) as manager:
        worker = manager.activation()
        events = await worker.turn("/line 3000000\n/line 3000000\n/ask Still?\n/say end")
        receipt = events[-1]["receipt"]
        assert receipt["outcome"] == "completed"
        assert sum(len(json.dumps(event)) for event in events) < 2 * MIB
        notices = [event["data"]["code"] for event in events if event.get("kind") == "notice"]
        assert notices == ["events_cut"]
        assert [event["kind"] for event in events if event.get("kind") == "permission"] == ["permission"]
        assert receipt["final_message_bytes"] > 5_000_000
        assert len(receipt["final_message"].encode()) <= 64 * 1024
        assert receipt["final_message"].endswith(f"… [cut: {receipt['final_message_bytes']} bytes]")


async def test_prompt_is_bounded_and_survives(manager: Manager) -> None:
    """Case: F10, F11. A prompt of 1 MiB reaches the agent unchanged; one byte more is refused before anything is written."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.session()).ok()
    (await worker.prompt("x" * (MIB + 1))).refused(413, "prompt_too_large")
    text = "/think " + "ü😀\x01" * 140_000
    (await worker.prompt(text)).ok()
    assert (await worker.events())[-1]["receipt"]["outcome"] == "completed"
    (line,) = (manager.home / "ledger").read_text().splitlines()
    assert json.loads(line)["text"] == text


def memory_bytes(manager: Manager, name: str) -> int:
    """A line of the manager's /proc status."""
    assert manager.process is not None
    status = Path(f"/proc/{manager.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(name)).split()[1]) * 1024


WIDE = [sys.executable, str(Path(__file__).parent / "agents" / "wide.py")]


@pytest.mark.parametrize("kind", ["chunk", "tool"])
async def test_large_line_of_wide_characters(manager: Manager, kind: str) -> None:
    """Case: F10, F11. Where one emoji would make each copy four times as large, memory stays within the same bound."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.session(command=WIDE)).ok()
    before = memory_bytes(manager, "VmHWM")
    (await worker.prompt(kind)).ok()
    events = await worker.events()
    assert events[-1]["receipt"]["outcome"] == "completed"
    unit = f"aé世😀é\n{BAD}"
    if kind == "chunk":
        text = said(events)
        assert text == unit * (len(text) // len(unit))
        assert len(text) > 2 * MIB
        assert events[-1]["receipt"]["final_message_bytes"] == len(text.encode())
    else:
        (update,) = [event["data"] for event in events if event.get("kind") == "tool_update"]
        text = update["content"][0]["content"]["text"]
        assert text.startswith(unit)
        assert "[cut: " in text
    assert memory_bytes(manager, "VmHWM") - before < 3 * FRAME_MAX


async def test_oversized_request_and_response(manager: Manager) -> None:
    """Case: F11. A request above the limit is refused, so that its sender does not wait; a response settles the turn as failed."""
    worker = manager.activation()
    events = await worker.turn("request", command=WIDE)
    assert said(events) == "-32600"
    receipt = events[-1]["receipt"]
    second = worker.next()
    (await second.take()).ok()
    (await second.session(command=WIDE, recorded=worker.recorded(receipt))).ok()
    (await second.prompt("response")).ok()
    receipt = (await second.events())[-1]["receipt"]
    assert (receipt["outcome"], receipt["error_code"], receipt["native_turn"]) == ("failed", "agent_protocol_error", 2)
