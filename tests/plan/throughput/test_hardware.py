"""The hardware table against data sheets, files of one's own, and their faults."""

import json

import pytest
import yaml

from megaxf.plan.errors import PlanError
from megaxf.plan.throughput.hardware import find, read_profile, table, write_profile
from tests.plan.digits import words

SHEETS = """
    a100-40gb  312     40   1.555  600
    a100       312     80   2.039  600
    h100       989.4   80   3.35   900
    h100-pcie  756     80   2.0    64
    h100-nvl   835     94   3.9    64
    h200       989.4   141  4.8    900
    b200       2250    180  7.7    1800
    gb200      2500    186  8.0    1800
    mi300x     1307.4  192  5.3    896
    l40s       362.05  48   0.864  64
    a10        125     24   0.600  64
    rtxa6000   154.85  48   0.768  64
"""
"""Of the makers: dense bf16 TFLOP/s, GB, TB/s, GB/s of the link to all of a node, both ways (PCIe 4 where bridges join
pairs only)."""


@pytest.mark.parametrize(("name", "tflops", "memory", "bandwidth", "link"), words(SHEETS, 5))
def test_data_sheets(name, tflops, memory, bandwidth, link):
    entry = find(name)
    assert entry.peak("bf16") == pytest.approx(float(tflops) * 1e12)
    assert entry.memory == pytest.approx(float(memory) * 1e9)
    assert entry.memory_bandwidth == pytest.approx(float(bandwidth) * 1e12)
    assert 2 * entry.link_bandwidth == pytest.approx(float(link) * 1e9)


@pytest.mark.parametrize(
    ("written", "found"),
    [("H100", "h100"), ("h100-sxm", "h100"), ("A100-80GB", "a100"), ("NVIDIA H200", "h200"), ("RTX 4090", "rtx4090")],
)
def test_names_as_people_write_them(written, found):
    assert find(written).name == found


def test_unknown_names_have_near_ones():
    with pytest.raises(PlanError, match=r"'h1000' is not in the hardware table; did you mean h100 .*all: h100, "):
        find("h1000")
    with pytest.raises(PlanError, match="describe it in a file for --hardware"):
        find("abacus")


def test_a_file_of_ones_own(tmp_path):
    ours = {"memory_gb": 80, "memory_tb_s": 3, "node_gpus": 4, "link_gb_s": 450, "network_gb_s": 12.5}
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump({"h100": {**ours, "device": "H100"}, "odd": {**ours, "peak_tflops": {"bf16": 100}}}))
    assert next(iter(table(path))) == "h100"
    assert find("h100", path).node_size == 4
    assert find("odd", path).peak("bf16") == 1e14
    assert find("a100", path) == find("a100")
    with pytest.raises(PlanError, match=r"odd has no peak for train.precision = fp32; use one of bf16"):
        find("odd", path).peak("fp32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_gb": "80"}, "ours.memory_gb = '80' is not a positive number"),
        ({"link_gb_s": -1}, "ours.link_gb_s = -1 is not a positive number"),
        ({"colour": "red"}, "ours needs memory_gb"),
        ({"device": "abacus"}, "ours.device = 'abacus' has no known peak; give peak_tflops"),
        ({"architecture": "gothic"}, "use one of ampere, hopper, other"),
        ({"link_gb_s": float("inf")}, "ours.link_gb_s = inf is not a positive number"),
        ({"memory_gb": True}, "ours.memory_gb = True is not a positive number"),
        ({"node_gpus": 7.5}, "ours.node_gpus = 7.5 is not a whole number of GPUs"),
        ({"node_gpus": 0.5}, "ours.node_gpus = 0.5 is not a whole number of GPUs"),
        ({"peak_tflops": {"bf16": 0}}, "ours.peak_tflops = .* is not precisions with positive numbers"),
        ({"peak_tflops": {"bf16": -100}}, "ours.peak_tflops = .* is not precisions with positive numbers"),
        ({"peak_tflops": {}}, "ours.peak_tflops = {} is not precisions with positive numbers"),
        ({"peak_tflops": 3}, "ours.peak_tflops = 3 is not precisions with positive numbers"),
    ],
)
def test_faults_of_a_file(tmp_path, change, message):
    entry = {"device": "H100", "memory_gb": 80, "memory_tb_s": 3, "node_gpus": 4, "link_gb_s": 450}
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump({"ours": {**entry, **change}}))
    with pytest.raises(PlanError, match=message):
        table(path)


def test_profiles_come_back(tmp_path):
    path = tmp_path / "profile.json"
    write_profile(path, find("h100"))
    assert read_profile(path) == find("h100")
    path.write_text("{}")
    with pytest.raises(PlanError, match="not a profile that megaxf plan calibrate wrote"):
        read_profile(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measured": {"nonsense": 1}}, "measured.nonsense is no constant"),
        ({"measured": None}, "measured = None is not names with numbers"),
        ({"measured": {"link": "fast"}}, "measured.link = 'fast' is not a positive number"),
        ({"peaks": [1]}, r"peaks = \[1\] is not names with numbers"),
        ({"peaks": {"bf16": 0}}, "peaks.bf16 = 0 is not a positive number"),
        ({"memory": "x", "node_size": 0}, "memory = 'x' is not a positive number; node_size = 0 is not a positive"),
        ({"architecture": "gothic"}, "architecture = 'gothic' is none of ampere"),
        ({"colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
def test_faults_of_a_profile(tmp_path, change, message):
    path = tmp_path / "profile.json"
    write_profile(path, find("h100"))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PlanError, match=f"not a profile that megaxf plan calibrate wrote: .*{message}"):
        read_profile(path)


def test_a_table_that_is_no_text(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match=r"cluster.yaml cannot be read as a hardware table"):
        table(path)
