"""Two hosts on one machine: network namespaces with names and addresses of their own, joined by a cable to cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ADDRESSES = {"alpha": "10.213.7.1", "beta": "10.213.7.2"}


def missing() -> str | None:
    """Why there can be no hosts here."""
    absent = [name for name in ("ip", "unshare", "hostname") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} is not installed (Debian and Ubuntu: apt install iproute2 util-linux hostname)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    trial = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True)
    return f"network namespaces are not allowed here: {trial.stderr.strip()}" if trial.returncode else None


class Hosts:
    """`with Hosts() as hosts`: alpha and beta, until the end."""

    def __init__(self) -> None:
        self._names = {host: f"{host}-{os.getpid()}" for host in ADDRESSES}
        self._cables = {host: f"{host[0]}{os.getpid()}" for host in ADDRESSES}

    def __enter__(self) -> Hosts:
        alpha, beta = self._cables.values()
        _ip("link", "add", alpha, "type", "veth", "peer", "name", beta)
        for host, address in ADDRESSES.items():
            _ip("netns", "add", self._names[host])
            _ip("link", "set", self._cables[host], "netns", self._names[host])
            _ip("-n", self._names[host], "addr", "add", f"{address}/24", "dev", self._cables[host])
            for device in ("lo", self._cables[host]):
                _ip("-n", self._names[host], "link", "set", device, "up")
        return self

    def __exit__(self, *error: object) -> None:
        for name in self._names.values():
            for process in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
                os.kill(int(process), 9)
            subprocess.run(["ip", "netns", "del", name], check=False)

    def start(self, host: str, command: list[str], log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
        """A command on one of the hosts, with its output in a file."""
        inside = ["ip", "netns", "exec", self._names[host], "unshare", "--uts"]
        inside += ["sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", host]
        with log.open("wb") as out:
            return subprocess.Popen([*inside, *command], env=env, stdout=out, stderr=out)

    def processes(self, host: str) -> list[int]:
        """What still runs on a host."""
        listed = subprocess.run(["ip", "netns", "pids", self._names[host]], capture_output=True, text=True)
        return [int(word) for word in listed.stdout.split()]

    def cable(self, state: str) -> None:
        """`down` cuts the hosts off from one another without a word, `up` joins them again."""
        _ip("-n", self._names["alpha"], "link", "set", self._cables["alpha"], state)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
