"""Processes forked from one that is warm: they have its modules, and a command ends as it does as a program."""

import sys

from tests.distributed.forking import run_megaxf, warm_processes


def exit_with_what_is_missing():
    sys.exit(sum(name not in sys.modules for name in ("torch._inductor.compile_fx", "megaxf.train.loop", "deepspeed")))


def test_a_process_has_what_it_needs_from_the_start():
    """multiprocessing passes over a module that cannot be imported beforehand, and all would only be slower."""
    process = warm_processes().Process(target=exit_with_what_is_missing)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_fault_shows_in_the_exit_code_and_in_what_is_said(tmp_path):
    done = run_megaxf(["checkpoint", "list", "no-such-run"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-run" in done.stderr


def test_a_command_is_killed_in_the_end(tmp_path):
    assert run_megaxf(["doctor"], tmp_path, timeout=0.0).returncode == -9
