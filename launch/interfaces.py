"""Which network interface the ranks of several hosts talk over.

gloo takes the interface that the host's own name leads to; in many installations that is the loopback, where nobody
else can answer. So the interface is the one that leads to the head node, unless the user names one.
"""

from __future__ import annotations

import socket

import psutil

from launch.launchers import fault


def addresses() -> dict[str, list[str]]:
    """The IP addresses of this host, by interface."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: found
        for name, entries in psutil.net_if_addrs().items()
        if (found := [entry.address.partition("%")[0] for entry in entries if entry.family in families])
    }


def check(name: str, setting: str) -> str:
    """The name again. Raises ConfigError where this host has no such interface; setting: where it was named."""
    if name not in addresses():
        raise fault(f"{setting} = {name} is no network interface of {socket.gethostname()}; it has {_listed()}")
    return name


def towards(head: str) -> str | None:
    """The interface that this host reaches the head node over; None where that has no address of this host."""
    try:
        family, _, _, _, place = socket.getaddrinfo(head, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # Sends nothing: asks the routing table.
            own = probe.getsockname()[0]
    except OSError:
        return None
    return next((name for name, found in addresses().items() if own in found), None)


def own_address(interface: str | None) -> str:
    """An address of this host that others can reach: of the named interface, of its name, or its only one.

    Raises ConfigError where none of these is clear.
    """
    if interface:
        return addresses()[check(interface, "MEGAXF_INTERFACE")][0]
    name = socket.gethostname()
    try:
        resolved = socket.gethostbyname(name)
    except OSError:
        resolved = "no address"
    if not resolved.startswith("127.") and resolved != "no address":
        return resolved
    outward = [found[0] for found in addresses().values() if not found[0].startswith("127.") and found[0] != "::1"]
    if len(outward) == 1:
        return outward[0]
    raise fault(
        f"the name of this host, {name}, leads to {resolved}, where other hosts cannot reach it; of its interfaces "
        f"{_listed()} name one in MEGAXF_INTERFACE, or set MASTER_ADDR to the address of rank 0's host"
    )


def _listed() -> str:
    return ", ".join(f"{name} ({found[0]})" for name, found in addresses().items())
