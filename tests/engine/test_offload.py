"""Offloaded state and weights give the numbers that they give in place, and can be read and written."""

import shutil

import pytest
import torch

from megaxf.engine.operators import load_operator
from tests.distributed.pool import RemoteError
from tests.distributed.tiny import read_all, tiny_engine, tiny_run, train_steps, write_all

CPU = [
    (1, {"offload_optimizer": "cpu"}),
    (2, {"offload_optimizer": "cpu"}),
    (3, {"offload_optimizer": "cpu"}),
    (3, {"offload_parameters": "cpu"}),
    (3, {"offload_optimizer": "cpu", "offload_parameters": "cpu"}),
]
NVME = [
    {"offload_optimizer": "nvme"},
    {"offload_parameters": "nvme"},
    {"offload_optimizer": "nvme", "offload_parameters": "nvme"},
]
TENSOR = {"tensor_parallel_size": 2}
EVEN = {"intermediate_size": 46}
LARGE = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "head_dim": 32}
"""On two ranks the shares of the largest matrices have the megabyte from which on DeepSpeed writes to a disk."""


def straight_and_resumed(model, engine, parallel, precision="fp32"):
    """Numbers of steps 0 to 4, those of 3 and 4 of a fresh engine with the state of step 3, and the final state."""
    train = {"precision": precision, "gradient_clip": 0.7}
    run = tiny_run(model, engine=engine, parallel=parallel, train=train, optimizer={"eps": 1e-6})
    first = tiny_engine(run)
    untrained = read_all(first)
    numbers = train_steps(first, run, range(3))
    state = read_all(first)
    numbers += train_steps(first, run, range(3, 5))
    other = tiny_engine(run)
    write_all(other, state, 3)
    return (
        torch.tensor([row[:3] for row in numbers]),
        numbers[3:],
        train_steps(other, run, range(3, 5)),
        untrained,
        read_all(other),
    )


@pytest.fixture(scope="module")
def expected(run_on):
    """The same of the reference engine in one process."""
    found = {}

    def get(model):
        if str(model) not in found:
            found[str(model)] = run_on(1, straight_and_resumed, model, {"zero_stage": 0}, {})[0]
        return found[str(model)]

    return get


def check(got, expected):
    numbers, straight, resumed, untrained, state = got
    expected_numbers, _, _, expected_untrained, expected_state = expected
    torch.testing.assert_close(numbers[:, [0, 2]], expected_numbers[:, [0, 2]], rtol=1e-5, atol=0)
    assert straight == resumed
    for name, tensors in expected_untrained.items():
        assert torch.equal(untrained[name]["master"], tensors["master"])
    for name, tensors in expected_state.items():
        for key, tensor in tensors.items():
            assert (state[name][key] - tensor).norm() <= 1e-5 * tensor.norm(), (name, key)


@pytest.mark.parametrize(("stage", "places"), CPU, ids=str)
@pytest.mark.parametrize("parallel", [{}, TENSOR], ids=["data 2", "tensor 2"])
def test_memory_of_the_cpu(run_on, expected, parallel, stage, places):
    for got in run_on(2, straight_and_resumed, EVEN, {"zero_stage": stage, **places}, parallel):
        check(got, expected(EVEN))


def test_fp16_with_an_offloaded_optimizer(run_on, expected):
    for numbers, straight, resumed, *_ in run_on(
        2, straight_and_resumed, EVEN, {"zero_stage": 2, "offload_optimizer": "cpu"}, {}, "fp16"
    ):
        torch.testing.assert_close(numbers[:, [0, 2]], expected(EVEN)[0][:, [0, 2]], rtol=5e-3, atol=0)
        assert straight == resumed


@pytest.fixture(scope="module")
def async_io():
    """DeepSpeed's door to the disk, compiled here: takes minutes, once for each virtual environment."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    builder = AsyncIOBuilder()
    if not builder.is_compatible() or not shutil.which("ninja"):
        pytest.skip("DeepSpeed's async_io needs libaio-dev and ninja to be compiled")
    load_operator(builder)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("async_io")
@pytest.mark.parametrize("places", NVME, ids=str)
def test_nvme(run_on, expected, tmp_path, places):
    engine = {"zero_stage": 3, "nvme_folder": str(tmp_path), **places}
    for got in run_on(2, straight_and_resumed, LARGE, engine, {}):
        check(got, expected(LARGE))
    written = {path.parent.parent.name for path in tmp_path.rglob("*.swp") if path.stat().st_size >= 2**20}
    folders = {"offload_optimizer": "optimizer", "offload_parameters": "float32params"}
    assert written == {folders[name] for name in places}


def test_shares_that_deepspeed_cannot_read_back_are_refused(run_on, tmp_path):
    engine = {"zero_stage": 3, "offload_optimizer": "nvme", "nvme_folder": str(tmp_path)}
    with pytest.raises(
        RemoteError, match=r"embed_tokens.weight: 2013 elements over 2 ranks are 1007 for each, not a mul"
    ):
        run_on(2, straight_and_resumed, EVEN, engine, {})


def start_without_libaio(folder):
    from deepspeed.ops.op_builder import AsyncIOBuilder

    def fail(self, verbose):
        raise RuntimeError("Unable to JIT load the async_io op")

    load, AsyncIOBuilder.load = AsyncIOBuilder.load, fail
    engine = {"zero_stage": 3, "offload_parameters": "nvme", "nvme_folder": folder}
    try:
        tiny_engine(tiny_run(EVEN, engine=engine))
    except ValueError as error:
        return str(error)
    finally:
        AsyncIOBuilder.load = load
    return None


def test_a_missing_library_is_named(run_on, tmp_path):
    (message,) = run_on(1, start_without_libaio, str(tmp_path))
    assert "engine.offload_parameters = nvme needs" in message
    assert "libaio-dev" in message and "engine.offload_parameters = cpu" in message and "Unable to JIT load" in message
