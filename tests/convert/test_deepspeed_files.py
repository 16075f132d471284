"""What the files of DeepSpeed say beside the numbers, and folders that must not be taken for whole ones."""

import pytest
import torch

from megaxf.convert import deepspeed
from megaxf.convert.deepspeed_zero import read_zero
from megaxf.convert.errors import ConvertError
from megaxf.convert.interface import Form, Trained
from megaxf.models.llama import Config
from tests.distributed.tiny import MODEL

CONFIG = Config(**MODEL)
SHAPES = [{"a": torch.Size([3]), "b": torch.Size([2, 2])}]


@pytest.fixture
def universal(tmp_path, make_weights):
    deepspeed.write(Trained(CONFIG, make_weights(CONFIG), None, "bfloat16", []), tmp_path / "out", Form())
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        (("embed_tokens.weight", "lm_head.weight"), {"cat_dim": 0, "vocab_tensor": True}),
        (("o_proj.weight", "down_proj.weight"), {"cat_dim": 1}),
        (("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight"), {"cat_dim": 0}),
        (("norm.weight",), {"cat_dim": 0}),
    ],
)
def test_deepspeed_is_told_how_tensor_parallel_ranks_share_a_parameter(universal, ends, kind):
    folders = [path for path in universal.glob("*/zero/*") if path.name.endswith(ends)]
    assert len(folders) >= len(ends)
    for folder in folders:
        for file in ("fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"):
            content = torch.load(folder / file)
            assert {key: value for key, value in content.items() if key != "param"} == kind


def test_a_parameter_of_another_size_is_refused(universal):
    path = next(universal.glob("*/zero/lm_head.weight/fp32.pt"))
    torch.save({"param": torch.zeros(5)}, path)
    with pytest.raises(ConvertError, match=r"lm_head.weight/fp32.pt has 5 elements, \[\d+, \d+\] are expected"):
        deepspeed.read(universal).weights["lm_head.weight"]


def test_files_of_the_pipeline_are_refused(universal):
    next(universal.glob("*_universal")).joinpath("layer_01-model_states.pt").write_bytes(b"")
    with pytest.raises(ConvertError, match="was saved by DeepSpeed's pipeline"):
        deepspeed.read(universal)


def save_stage_3(folder, rank, numbers, model_part=0):
    """The file of one of two ranks, before the first step."""
    state = {
        "zero_stage": 3,
        "partition_count": 2,
        "fp32_flat_groups": [torch.tensor(numbers)],
        "optimizer_state_dict": {"state": {}},
    }
    name = f"zero_pp_rank_{rank}_mp_rank_{model_part:02d}_optim_states.pt"
    torch.save({"optimizer_state_dict": state}, folder / name)


def test_shares_that_lack_elements_are_refused(tmp_path):
    save_stage_3(tmp_path, 0, [1.0, 2.0, 4.0, 5.0])
    save_stage_3(tmp_path, 1, [3.0, 0.0, 6.0, 7.0])
    weights, _ = read_zero(tmp_path, SHAPES)
    assert weights["a"].tolist() == [1, 2, 3] and weights["b"].tolist() == [[4, 5], [6, 7]]
    save_stage_3(tmp_path, 1, [3.0, 0.0, 6.0])
    with pytest.raises(
        ConvertError, match=r"not hold whole.*\n  - b has 3 elements in the files, and its shape \[2, 2\] 4"
    ):
        read_zero(tmp_path, SHAPES)


def test_files_of_deepspeeds_tensor_parallelism_are_refused(tmp_path):
    for rank in range(2):
        save_stage_3(tmp_path, rank, [0.0] * 4, model_part=rank)
    with pytest.raises(ConvertError, match=r"tensor parallelism of DeepSpeed \(mp_rank_01\); make it universal"):
        read_zero(tmp_path, SHAPES)
