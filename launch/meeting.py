"""How the processes of a run meet on the head node, before torch knows of them; plain sockets, no torch.

Rank 0 listens on the first free port of a list that all ranks compute from the job's name. The others try the list in
turn: who answers with the job's name is rank 0, whatever else listens on these ports. When all have come, every rank
is told what rank 0 has to say. When time is up, every rank that came is told who did not.
"""

from __future__ import annotations

import json
import socket
import time
import zlib
from collections.abc import Collection
from contextlib import ExitStack, suppress
from typing import Any

from launch.launchers import Launch, fault
from launch.signals import STOPPED, asked

FIRST_PORT, PORTS = 15000, 15000
"""Below the range from which systems hand out ports, 32768 on Linux."""
TRIES = 16
"""Ports of a job; one run a node needs one."""
ANSWER_SECONDS = 2.0
"""For how long a stranger on one of our ports may say nothing."""
LOOK_SECONDS = 0.5
"""How often rank 0 looks at signals and at the time while it waits."""
LONGEST = 4096
"""Bytes of a message."""


def ports(launch: Launch) -> list[int]:
    """Where rank 0 may listen, in this order."""
    if launch.port is not None:
        return [launch.port]
    start = zlib.crc32(launch.job.encode())
    return [FIRST_PORT + (start + 1009 * attempt) % PORTS for attempt in range(TRIES)]


def meet(launch: Launch, word: str, seconds: float) -> str:
    """Wait until all ranks have come; gives the `word` of rank 0 on all of them; collective.

    Raises ConfigError where the head node has no name or no free port, where ranks do not come within so many seconds,
    and where two processes have the same rank; SystemExit with code 75 where a signal asks to stop (launch.signals):
    rank 0 tells those that came.
    """
    assert launch.address is not None
    try:
        socket.getaddrinfo(launch.address, None)
    except OSError as error:
        raise fault(
            f"{launch.launcher} says that rank 0 is on {launch.address}, a name that {launch.host} cannot find "
            f"({error.strerror}); set MASTER_ADDR to an address of that host"
        ) from None
    deadline = time.monotonic() + seconds
    answer = _receive_all(launch, word, deadline) if launch.rank == 0 else _call(launch, deadline, seconds)
    if "stop" in answer:
        raise SystemExit(STOPPED)
    if "fault" in answer:
        raise fault(answer["fault"])
    return str(answer["word"])


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


def _receive_all(launch: Launch, word: str, deadline: float) -> dict[str, str]:
    """Rank 0: collect the others, then answer all of them."""
    came = {0: launch.host}
    answer = {"word": word}
    with ExitStack() as connections:
        listener = connections.enter_context(_listen(launch))
        callers = []
        listener.settimeout(LOOK_SECONDS)
        while len(came) < launch.world_size and "fault" not in answer:
            if asked():
                answer = {"stop": "a signal"}
                break
            try:
                caller = connections.enter_context(listener.accept()[0])
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue
                answer = {"fault": missing(launch, came, f", from {', '.join(sorted(set(came.values())))}")}
                break
            _write(caller, {"job": launch.job})
            hello = _read(caller)
            if "rank" in hello:
                callers.append(caller)
                rank, host = int(hello["rank"]), str(hello["host"])
                if rank in came:
                    answer = {"fault": _twice(launch, rank, came[rank], host)}
                came[rank] = host
        for caller in callers:
            _write(caller, answer)
    return answer


def _listen(launch: Launch) -> socket.socket:
    """A socket on the first port that is free on this host."""
    for port in ports(launch):
        try:
            return socket.create_server(("", port), backlog=launch.world_size)
        except OSError:
            continue
    taken = ", ".join(map(str, ports(launch)))
    raise fault(
        f"rank 0 cannot listen on port {taken} of {launch.host}, where other programs do; set MASTER_PORT to a free one"
    )


def _call(launch: Launch, deadline: float, seconds: float) -> dict[str, Any]:
    """Other ranks: find rank 0, and wait for its answer, whatever signals come then: it knows of this rank."""
    while time.monotonic() < deadline:
        if asked():
            return {"stop": "a signal"}
        for port in ports(launch):
            try:
                with socket.create_connection((launch.address, port), timeout=ANSWER_SECONDS) as call:
                    if _read(call).get("job") != launch.job:
                        continue
                    _write(call, {"rank": launch.rank, "host": launch.host})
                    if answer := _read(call, seconds + ANSWER_SECONDS):
                        return answer
            except OSError:
                continue
        time.sleep(0.2)
    where = f"{launch.address}, port {' or '.join(map(str, ports(launch)[:2]))}"
    raise fault(
        f"rank {launch.rank} on {launch.host} has not found rank 0 within {seconds:.0f} s at {where}: it has not "
        "started there, or a firewall or another network lies between; MASTER_ADDR and MASTER_PORT say where it is"
    )


def missing(launch: Launch, came: Collection[int], where: str = "") -> str:
    """What to say where only these ranks have come. where: they are."""
    absent = [str(rank) for rank in range(launch.world_size) if rank not in came]
    shown = ", ".join(absent[:8]) + (", ..." if len(absent) > 8 else "")
    return (
        f"{len(came)} of {launch.world_size} ranks came in time{where}; missing: rank {shown}. Look for errors "
        "of these, or start as many processes as are announced"
    )


def _twice(launch: Launch, rank: int, host: str, other: str) -> str:
    return (
        f"two processes say that they are rank {rank} of {launch.launcher}, on {host} and on {other}: variables of "
        "another launcher are left over; unset them, or start in a new shell"
    )


def _write(connection: socket.socket, message: dict[str, Any]) -> None:
    """A message is one line of JSON. Who has gone away needs none."""
    with suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def _read(connection: socket.socket, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """The next message; empty where none comes, and for what a stranger says."""
    connection.settimeout(seconds)
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < LONGEST:
            received = connection.recv(1)
            if not received:
                break
            line += received
        message = json.loads(line)
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}
