"""A Slurm of two nodes on this host: munged, slurmctld and two slurmd in one folder, on free ports.

Nothing outside the folder is read or written, but for the programs; it runs as whoever starts it.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
DEBIAN = "apt install slurmctld slurmd slurm-client munge"
PATIENCE = 1200
"""Seconds for what must come, on a machine that has other things to do."""
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
PriorityType=priority/basic
ReturnToService=2
SlurmdTimeout=20
MessageTimeout=60
KillWait=30
MinJobAge=3600
JobRequeue=1
OverTimeLimit=0
RebootProgram=/bin/false
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why there can be no Slurm here."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    return f"{', '.join(absent)} of Slurm is not installed (Debian and Ubuntu: {DEBIAN})" if absent else None


class Slurm:
    """Starts with `with`, ends with it, jobs and all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        self.env |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": SEARCHED}

    def __enter__(self) -> Slurm:
        folder = self.folder
        (folder / "state").mkdir(parents=True)
        (folder / "munge").mkdir(mode=0o700)
        key = folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        ports = _free_ports(3)
        text = CONFIG.format(folder=folder, host=socket.gethostname(), user=getpass.getuser(), ports=ports)
        (folder / "slurm.conf").write_text(text)
        private = {"key-file": key, "seed-file": folder / "munge" / "seed", "pid-file": folder / "munged.pid"}
        private |= {"socket": folder / "munge.socket", "log-file": folder / "munged.log"}
        options = [f"--{name}={path}" for name, path in private.items()]
        self._begin("munged", ["munged", "--foreground", "--force", *options])
        self.until(lambda: (folder / "munge.socket").exists(), "munged")
        self._begin("slurmctld", ["slurmctld", "-D"])
        self.start_node("node1")
        self.start_node("node2")
        self.until(lambda: self.ask("sinfo", "-h", "-o", "%T %D") == "idle 2", "both nodes")
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as always:
            for name in ("munged", "slurmctld", "node2", "node1"):
                always.callback(self._end, name)
            self.ask("scancel", "--user", getpass.getuser())
            self.until(lambda: not self.ask("squeue", "-h"), "the end of all jobs")

    def start_node(self, name: str) -> None:
        """Bring a node up, or back."""
        self._begin(name, ["slurmd", "-D", "-N", name])

    def kill_node(self, name: str) -> None:
        """A node dies: its daemon and all that it started."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()
        for process in processes(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def ask(self, *command: str) -> str:
        """What a command of Slurm's prints."""
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=PATIENCE).stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What is known of a job: JobState, ExitCode, Restarts, NodeList, ..."""
        words = self.ask("scontrol", "show", "job", "-o", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number: str, states: set[str], patience: float = PATIENCE) -> dict[str, str]:
        """The job once it is in one of these states."""
        self.until(lambda: self.job(number).get("JobState") in states, f"job {number} to be {states}", patience)
        return self.job(number)

    def _begin(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(command, env=self.env, stdout=out, stderr=out, cwd=self.folder)

    def _end(self, name: str) -> None:
        if daemon := self.daemons.pop(name, None):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def until(self, true: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Wait for something that must come."""
        end = time.monotonic() + patience
        while not true():
            assert time.monotonic() < end, f"waited {patience} s for {what}\n{self._logs()}"
            time.sleep(0.2)

    def _logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(self.folder.glob("*.log"))
        )


def processes(node: str = "", words: str = "") -> list[psutil.Process]:
    """What runs on a Slurm node, which has its name in the environment; words: in the command."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            there = process.environ().get("SLURMD_NODENAME", "").startswith(node or "node")
            if there and words in " ".join(process.cmdline()):
                found.append(process)
    return found


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on at this moment."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
