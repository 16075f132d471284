"""What is installed from a wheel: all that the commands read, also far from the folder of the repository."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("configs", "data_pipeline", "launch", "megaxf", "slurm")
BUILD = "from setuptools.build_meta import build_wheel; build_wheel('wheels')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this tree, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "wheels").mkdir()
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (built,) = (folder / "wheels").glob("megaxf-*.whl")
    zipfile.ZipFile(built).extractall(folder / "site")
    return folder / "site"


def test_every_file_of_the_packages_is_in_the_wheel(wheel):
    def files(folder):
        found = (path.relative_to(folder) for name in PACKAGES for path in (folder / name).rglob("*") if path.is_file())
        return {str(path) for path in found if "__pycache__" not in path.parts}

    assert files(wheel) == files(ROOT)


@pytest.mark.long
def test_runs_are_submitted_from_an_installed_wheel(wheel, tmp_path):
    tiny = (wheel / "configs" / "runs" / "tiny.yaml").read_text()
    (tmp_path / "run.yaml").write_text(tiny)
    command = [sys.executable, "-P", "-m", "launch.megaxf", "submit", "run.yaml", "--time", "60", "--dry-run"]
    env = os.environ | {"PYTHONPATH": str(wheel)}
    for template in ("pretrain", "pretrain-per-gpu"):
        words = [*command, "--gpus-per-node", "0", "--template", template]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert f"here={wheel / 'slurm'}" in done.stdout
        assert (wheel / "slurm" / "job.sh").is_file() and (wheel / "launch" / "node.py").is_file()
