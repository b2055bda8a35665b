"""By which names `up` is reached: what it tells the control plane to answer to, and the address that a person can open."""

import ipaddress
from collections.abc import Sequence

from turnkeeper.main.environment import ListenAddress

ANSWERED_ANYWAY = ("127.0.0.1", "localhost", "::1")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a server that listens on `address`, a name or an IP address."""
    parsed = _parsed(address)
    return address.lower() == "localhost" if parsed is None else parsed.is_loopback


def own_url(address: str, port: int) -> str:
    """The URL by which this machine reaches what listens on `address`: a wildcard is no address that can be opened."""
    parsed = _parsed(address)
    if parsed is not None and parsed.is_unspecified:
        address = "127.0.0.1" if parsed.version == 4 else "::1"
    return ListenAddress(host=address, port=port).url


def allowed_hosts(given: str | None, options: Sequence[str], address: str) -> str:
    """The value of `TURNKEEPER_ALLOWED_HOSTS`: that of the environment, `--allowed-host`s, and `--host` where it names one."""
    parsed = _parsed(address)
    names = [*(given or "").split(","), *options]
    if address.lower() not in ANSWERED_ANYWAY and (parsed is None or not parsed.is_unspecified):
        names.append(f"[{address}]" if parsed is not None and parsed.version == 6 else address.lower())
    names = [name.strip() for name in names if name.strip()]
    return "*" if "*" in names else ",".join(dict.fromkeys(names))


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None
