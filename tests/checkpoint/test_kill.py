"""Killed at any moment of a save, the last complete checkpoint is found and loads."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

# One process forks a saver twenty times, since importing torch takes longer than everything else here.
SCRIPT = """
    import json, os, random, runpy, signal, sys, time
    from pathlib import Path
    import torch
    from megaxf.checkpoint import find_latest, load, save
    from megaxf.parallel.mesh import build_mesh

    torch.set_num_threads(1)
    Holder = runpy.run_path(sys.argv[2])["Holder"]
    SHAPES = {f"layer.{i}": (100, 300) for i in range(4)}
    mesh, folder, draw = build_mesh(), Path(sys.argv[1]), random.Random(0)
    save(folder, 1, Holder(seed=1, shapes=SHAPES), {}, mesh)
    began = time.monotonic()
    save(folder, 1, Holder(seed=1, shapes=SHAPES), {}, mesh)
    duration = time.monotonic() - began
    seen, last, leftovers = [], 1, 0
    for _ in range(20):
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            for step in range(last + 1, last + 1000):
                os.write(tell, b"!")
                save(folder, step, Holder(seed=step, shapes=SHAPES), {}, mesh, keep_last=1)
        os.read(told, 1)  # it saves: how long a start takes is nobody's guess
        time.sleep(draw.uniform(0.5, 2.5) * duration)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)
        leftovers += any(path.name.startswith(".step") for path in folder.iterdir())
        target = Holder(shapes=SHAPES, optimizer_step=0)
        step = load(find_latest(folder), target, mesh)["step"]
        assert step >= last and target.equals(Holder(seed=step, shapes=SHAPES)), (step, last)
        last = step
        seen.append(step)
    print(json.dumps({"seen": seen, "leftovers": leftovers}))
"""


def test_kill_at_twenty_moments(tmp_path):
    helper = str(Path(__file__).with_name("conftest.py"))
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), helper]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert len(outcome["seen"]) == 20 and outcome["seen"][-1] > 1
    assert outcome["leftovers"] > 5, "the kills did not hit a save; the test shows nothing"
