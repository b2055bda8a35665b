"""How long a receipt is kept: until another activation of the same membership takes over, whatever happens to the agent."""

import signal

from sandboxd.manager import Manager, until
from turnkeeper.kit import procs


async def test_a_receipt_is_kept_until_the_next_take_of_its_membership(manager: Manager) -> None:
    """Proves: F-06. Asked again and again, after its agent is dead, and while another membership comes and goes."""
    first = manager.activation()
    receipt = (await first.turn("/say one"))[-1]["receipt"]
    for _ in range(3):
        assert (await first.call("GET", "/v1/receipt")).ok() == receipt
    for process in manager.below():
        procs.kill(process, signal.SIGKILL)
    await until(lambda: manager.below() == [])
    other = manager.activation(membership="00000000-0000-7000-8000-000000000002")
    assert (await other.turn("/say of another"))[-1]["receipt"]["outcome"] == "completed"
    assert (await first.call("GET", "/v1/receipt")).ok() == receipt
    assert (await first.call("POST", "/v1/stop")).ok()["evidence"]["receipt"] == receipt
    second = first.next()
    (await second.take()).ok()
    (await first.call("GET", "/v1/receipt")).refused(409, "fence")
    assert (await second.call("GET", "/v1/receipt")).status == 404
