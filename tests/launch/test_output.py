"""Nobody reads any more what a process writes: it goes on."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEAK = """
import sys
from launch.output import outlive_readers
outlive_readers()
print("heard", flush=True)
print("heard", file=sys.stderr, flush=True)
sys.stdin.read()
for _ in range(3):
    print("not heard", flush=True)
    print("not heard", file=sys.stderr)
print("not flushed" * 10_000)
open(sys.argv[1], "w").write("alive")
"""


@pytest.mark.parametrize("place", [os.pipe, pty.openpty])
def test_what_has_no_reader_goes_nowhere(tmp_path, place):
    ours, theirs = place()
    command = [sys.executable, "-c", SPEAK, str(tmp_path / "end")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        heard = os.read(ours, 100)
        while heard.count(b"heard") < 2:
            heard += os.read(ours, 100)
        os.close(ours)
        process.communicate()
    assert process.returncode == 0
    assert (tmp_path / "end").read_text() == "alive"
