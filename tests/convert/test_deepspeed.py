"""Folders that DeepSpeed itself wrote are read, and it loads the universal ones that are written."""

import pickle
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch
import torch.nn.functional as F

from megaxf.convert import deepspeed, registry
from megaxf.convert.errors import ConvertError
from megaxf.convert.interface import Form, OptimizerState, Trained
from megaxf.convert.torch_files import read_torch_file
from megaxf.engine.deepspeed_start import import_quietly
from megaxf.models.llama import Config, Model
from tests.convert.conftest import Weights
from tests.distributed.tiny import MODEL

CONFIG = Config(**MODEL)
KEYS = ("fp32", "exp_avg", "exp_avg_sq")


class WithHead(Model):
    """Gives logits, so that ZeRO 3 finds the head's weights within a forward pass."""

    def forward(self, tokens):
        return self.lm_head(super().forward(tokens))


def engine(stage, **more):
    """DeepSpeed's engine around a model of our names, no size of which is a multiple of the ranks."""
    module = import_quietly(torch.device("cpu"))
    torch.manual_seed(3)
    model = WithHead(CONFIG)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    groups = [[w for w in model.parameters() if w.dim() > 1], [w for w in model.parameters() if w.dim() == 1]]
    config = {
        "train_batch_size": 2,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
        **more,
    }
    optimizer = torch.optim.AdamW([{"params": group, "weight_decay": 0.1} for group in groups], lr=1e-2)
    module.utils.groups.mpu = None  # what an engine of another test has left in this process
    with redirect_stdout(StringIO()):
        return module.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


def state_of(made):
    """Whole tensors by name and key, from DeepSpeed's own accessors."""
    from deepspeed.utils import (
        lazy_init_hp_params_optimizer_state,
        safe_get_full_fp32_param,
        safe_get_full_optimizer_state,
    )

    optimizer = made.optimizer.optimizer
    if hasattr(made.optimizer, "bit16_groups"):  # ZeRO 1 and 2 find the moments of the first group only by themselves.
        for weights, group in zip(made.optimizer.bit16_groups, optimizer.param_groups, strict=True):
            lazy_init_hp_params_optimizer_state(weights, group["params"][0], optimizer.state)
    return {
        name: {"fp32": safe_get_full_fp32_param(weight).clone()}
        | {key: safe_get_full_optimizer_state(weight, key).clone() for key in KEYS[1:]}
        for name, weight in made.module.named_parameters()
    }


def step(made):
    ids = torch.randint(61, (1, 18), generator=torch.Generator().manual_seed(5))
    made.backward(F.cross_entropy(made(ids)[0, :-1].float(), ids[0, 1:]))
    made.step()


def save(folder, stage):
    made = engine(stage)
    step(made)
    step(made)
    with redirect_stdout(StringIO()):
        made.save_checkpoint(str(folder), tag="global_step2")
    return state_of(made)


def load(folder, stage):
    made = engine(stage, checkpoint={"load_universal": True})
    step(made)  # What it has by itself is to be replaced.
    with redirect_stdout(StringIO()):
        made.load_checkpoint(str(folder))
    steps = {float(state["step"]) for state in made.optimizer.optimizer.state.values()}
    return state_of(made), steps, made.global_steps


@pytest.fixture
def described(tmp_path, make_weights):
    """`described(folder)`: put what says the model beside DeepSpeed's files."""
    from megaxf.convert import huggingface

    return lambda folder: huggingface.describe(Trained(CONFIG, Weights(), None, "bfloat16", []), folder, "bfloat16")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_stage_is_read_as_deepspeed_reads_it(tmp_path, run_on, described, stage):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    state = run_on(2, save, tmp_path, stage)[0]
    with pytest.raises(ConvertError, match=r"does not say what model it is.*copy the model's config.json"):
        deepspeed.read(tmp_path)
    described(tmp_path)
    assert registry.format_of(tmp_path) == registry.format_of(tmp_path / "global_step2") == "deepspeed"
    found = deepspeed.read(tmp_path)
    assert (found.config, found.dtype, found.optimizer.step) == (CONFIG, "bfloat16", 2)
    assert set(found.weights) == set(state)
    with redirect_stdout(StringIO()):
        reference = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path))
    for name, tensors in state.items():
        assert torch.equal(found.weights[name], reference[name].contiguous()), name
        assert torch.equal(found.weights[name], tensors["fp32"]) and found.weights[name].any(), name
        for key in KEYS[1:]:
            assert torch.equal(found.optimizer.moments[key][name], tensors[key]) and tensors[key].any(), (name, key)
    if stage == 2:
        refuse_what_is_not_whole(tmp_path)


def refuse_what_is_not_whole(folder):
    second = next(folder.glob("global_step2/*rank_1_mp_rank_00_optim_states.pt"))
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(ConvertError, match=r"optim_states.pt of 1 ranks; it was saved by 2"):
        deepspeed.read(folder)
    second.write_bytes(content[: len(content) // 2])
    with pytest.raises(ConvertError, match=r"rank_1_mp_rank_00_optim_states.pt is no sound file of torch.save"):
        deepspeed.read(folder)


@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeed_loads_what_is_written(tmp_path, run_on, make_weights, stage):
    weights, *moments = (make_weights(CONFIG, seed) for seed in range(3))
    moments[1] = Weights({name: tensor**2 for name, tensor in moments[1].items()})
    optimizer = OptimizerState(7, dict(zip(KEYS[1:], moments, strict=True)))
    deepspeed.write(Trained(CONFIG, weights, None, "bfloat16", [], optimizer=optimizer), tmp_path / "out", Form())
    for state, steps, count in run_on(2, load, tmp_path / "out", stage):
        assert steps == {7.0} and count == 7
        for name, tensors in state.items():
            for key, expected in zip(KEYS, (weights, *moments), strict=True):
                assert torch.equal(tensors[key], expected[name]), (name, key)
    back = deepspeed.read(tmp_path / "out")
    assert (back.config, back.dtype, back.optimizer.step) == (CONFIG, "bfloat16", 7)
    assert list(back.weights) == list(weights) and all(torch.equal(back.weights[n], weights[n]) for n in weights)
    assert all(torch.equal(back.optimizer.moments["exp_avg"][n], moments[0][n]) for n in weights)


def test_a_universal_folder_has_to_be_whole(tmp_path, make_weights):
    weights = make_weights(CONFIG)
    deepspeed.write(Trained(CONFIG, weights, None, "float16", []), tmp_path / "out", Form())
    assert deepspeed.read(tmp_path / "out").dtype == "float16"
    zero = tmp_path / "out/global_step0_universal/zero"
    (zero / "lm_head.weight/exp_avg.pt").rename(tmp_path / "kept")
    with pytest.raises(
        ConvertError, match=r"moments of some parameters only:\n  - lm_head.weight/exp_avg.pt is missing"
    ):
        deepspeed.read(tmp_path / "out")
    (tmp_path / "kept").rename(zero / "lm_head.weight/exp_avg.pt")
    (zero / "model.norm.weight/fp32.pt").unlink()
    (zero / "lm_head.weight").rename(zero / "head.weight")
    with pytest.raises(ConvertError) as caught:
        deepspeed.read(tmp_path / "out")
    assert "model.norm.weight is missing" in str(caught.value) and "head.weight is not part" in str(caught.value)
    with pytest.raises(ConvertError, match="--dtype has no effect with --to deepspeed"):
        deepspeed.write(Trained(CONFIG, weights, None, "float32", []), tmp_path / "new", Form(dtype="bfloat16"))
    assert not (tmp_path / "new").exists()


class Evil:
    def __reduce__(self):
        return print, ("code of the file has run",)


def test_code_in_a_file_is_not_run(tmp_path, capsys):
    torch.save({"weight": torch.ones(2), "args": Evil()}, tmp_path / "a.pt")
    content = read_torch_file(tmp_path / "a.pt")
    assert torch.equal(content["weight"], torch.ones(2)) and content["args"].arguments == ("code of the file has run",)
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ConvertError, match=r"is no sound file of torch.save"):
        read_torch_file(tmp_path / "b.pt")
    assert capsys.readouterr().out == ""
