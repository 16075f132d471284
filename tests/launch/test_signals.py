"""Signals that come before or after somebody listens wait, and a node's go to its ranks."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RANK = """
import signal
assert {signal.SIGTERM, signal.SIGUSR1} <= signal.pthread_sigmask(signal.SIG_BLOCK, ()), "a moment is left open"
print("rank", flush=True)
print(signal.Signals(signal.sigwait({signal.SIGTERM, signal.SIGUSR1, signal.SIGINT})).name, flush=True)
"""
NODE = f"""
import os, signal, subprocess, sys
from launch.signals import HandOn
with HandOn() as signals:
    if "early" not in sys.argv:
        signals.begin()
    print("node", flush=True)
    sys.stdin.readline()
    subprocess.run([sys.executable, "-c", {RANK!r}])
os.kill(os.getpid(), signal.SIGUSR1)  # once more, as batch scripts do
print("end", flush=True)
"""


def start(*words):
    """A node that has begun, and starts its rank when it is told so."""
    node = subprocess.Popen([sys.executable, "-c", NODE, *words], cwd=ROOT, stdin=-1, stdout=-1, text=True)
    assert node.stdout.readline() == "node\n"
    return node


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
@pytest.mark.parametrize("before", [True, False])
def test_a_node_hands_signals_to_its_ranks_also_those_that_came_before_there_were_any(number, before):
    node = start()
    if before:
        node.send_signal(number)
    node.stdin.write("\n")
    node.stdin.flush()
    assert node.stdout.readline() == "rank\n"
    if not before:
        node.send_signal(number)
    assert node.stdout.read() == f"{signal.Signals(number).name}\nend\n"
    assert node.wait(60) == 0


def test_a_node_that_has_no_ranks_yet_leaves_with_75():
    node = start("early")
    node.send_signal(signal.SIGTERM)
    assert node.wait(60) == 75


def test_what_is_held_waits_for_the_trainer_and_is_held_again_after_it():
    code = """
import os, signal
from launch.signals import asked, held
with held():
    from megaxf.train.guards.stop import Signals  # with threads, which take over what is blocked
    os.kill(os.getpid(), signal.SIGTERM)
    assert asked()
    with Signals() as signals:
        assert signals.name == "SIGTERM"
    os.kill(os.getpid(), signal.SIGUSR1)
    assert asked()
    print("end", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("end\n", -signal.SIGUSR1), done.stderr
