"""What is printed: the resolved run, the lines of the steps."""

import io

import pytest
from rich.console import Console

from megaxf.config import load_run
from megaxf.config_errors import ConfigError
from megaxf.train.console import Report, duration
from megaxf.train.evaluate import Evaluation
from megaxf.train.resolved import page, resolve
from tests.train.test_metrics import record


def printed(thing):
    text = io.StringIO()
    Console(file=text, width=100).print(thing)
    return " ".join(text.getvalue().split())


@pytest.fixture
def large(tmp_path):
    """A cluster's run whose data is elsewhere."""
    (tmp_path / "run.yaml").write_text("""\
run_folder: runs/large
model: llama3-8b
data: {sequence_length: 8192, sources: {web: {folder: /data/web, weight: 3}, code: {folder: /data/code}}}
train: {steps: 100000, global_batch_size: 1024, micro_batch_size: 2, recompute: selective}
optimizer: {learning_rate: 3e-4}
schedule: {kind: warmup_stable_decay, warmup_steps: 2000}
engine: {zero_stage: 3}
checkpoint: {every: 1000}
""")
    return lambda *overrides: load_run(tmp_path / "run.yaml", list(overrides))


def test_the_numbers_of_a_cluster_run(large):
    found = resolve(large(), 64)
    assert found["problems"] == []
    assert len(found["warnings"]) == 2 and "is not on this machine" in found["warnings"][0]
    assert found["model"]["parameters"] == 8_030_261_248
    assert found["tokens_per_step"] == 1024 * 8192
    assert found["tokens"] == 838_860_800_000
    layout = found["layout"]
    assert (layout["sizes"]["data"], layout["zero_stage"], layout["micro_batch_size"], layout["accumulation"]) == (
        64, 3, 2, 8,
    )  # fmt: skip
    assert found["sources"]["web"]["share"] == 0.75
    assert found["learning_rates"] == {1: pytest.approx(1.5e-7), 2000: 3e-4, 90_000: 3e-4, 100_000: 0.0}
    assert found["model_flops"] == found["model_flops_per_token"] * found["tokens"]
    text = printed(page(found))
    assert "data parallel 64 x accumulation 8 x micro-batch 2; DeepSpeed ZeRO-3, bf16" in text
    assert "100,000 steps = 839B tokens, 104 for each parameter" in text
    assert "every 1,000 steps, and last step, keeping 2" in text


def test_a_world_that_does_not_fit_is_refused(large):
    with pytest.raises(
        ConfigError, match=r"train.global_batch_size = 1024 is not a multiple of train.micro_batch_size"
    ):
        resolve(large(), 96)


LAYOUT = [
    "train.global_batch_size=256",
    "engine.zero_stage=1",
    "parallel.tensor_parallel_size=16",
    "parallel.sequence_parallel=true",
    "parallel.context_parallel_size=2",
]


def test_the_layout_of_a_cluster_run(large):
    found = resolve(large(*LAYOUT), 64)["layout"]
    assert found["sizes"] == {"pipeline": 1, "data": 2, "context": 2, "tensor": 16}
    assert found["first_groups"] == {"pipeline": [0], "data": [0, 32], "context": [0, 16], "tensor": list(range(16))}
    assert (found["accumulation"], found["sequence"], found["sequence_between_matrices"]) == (64, 4096, 256)
    assert (found["attention_heads"], found["key_value_heads"], found["key_value_copies"]) == (2, 1, 2)
    text = printed(page(resolve(large(*LAYOUT), 64)))
    assert "data parallel 2 x accumulation 64 x micro-batch 2; DeepSpeed ZeRO-1, bf16, recomputation selective" in text
    assert "pipeline 1 x data 2 x context 2 x tensor 16; with rank 0: data [0, 32], context [0, 16]," in text
    assert "tensor [0 .. 15]" in text
    assert "2 query, 1 key/value (each on 2 ranks) on a rank" in text
    assert "4,096 of 8,192 tokens on a rank, 256 between the matrices" in text
    assert found["layers"] == [[32]]
    other = resolve(large(*LAYOUT, "parallel.order=[tensor, context, data, pipeline]"), 64)
    assert other["layout"]["first_groups"]["tensor"] == list(range(0, 64, 4))
    assert "tensor [0, 4 .. 60]" in printed(page(other))


def test_the_stages_of_a_cluster_run(large):
    stages = ["engine.zero_stage=1", "parallel.pipeline_parallel_size=2"]
    split = [*stages, "parallel.pipeline_layers=[20, 12]"]
    found = resolve(large(*split), 64)
    assert found["layout"]["layers"] == [[20], [12]]
    assert "pipeline 2 x data 32 x context 1 x tensor 1; with rank 0: pipeline [0, 32]" in printed(page(found))
    assert "1f1b, layers of the stages: 20, 12" in printed(page(found))
    folded = resolve(large(*stages, "parallel.pipeline_schedule=dualpipev"), 64)
    (out, back), (turn, again) = folded["layout"]["layers"]
    assert out + back + turn + again == 32
    assert f"dualpipev, layers of the stages: {out} and {back}, {turn} and {again}" in printed(page(folded))


def test_data_that_is_here_is_counted_and_checked(make, tmp_path):
    found = resolve(make(train={"steps": 40}), 1)
    assert found["sources"]["text"]["tokens"] == 257
    assert found["sources"]["text"]["validation"] == 113
    assert found["sources"]["text"]["epochs"] == 10.0
    assert found["warnings"] == ["data.sources.text is read 10.0 times; beyond 4 repeats teach little"]
    found = resolve(make(model={"vocab_size": 50}), 1)
    assert "model.vocab_size = 50; set it to 61 or more" in found["problems"][0]
    (tmp_path / "data" / "train" / "shard-00000.bin").write_bytes(b"cut")
    assert "has 3 bytes" in resolve(make(), 1)["problems"][0]


def test_lines():
    text = io.StringIO()
    report = Report(200, console=Console(file=text, soft_wrap=True))
    report.step(record(7))
    report.evaluation(7, Evaluation("books", 2.0, 1234, 4, 75.0))
    step, evaluation = text.getvalue().splitlines()
    assert step == (
        "step   7/200  loss 4.0000  lr 1.00e-03  norm 1.000  tok/s 200  TFLOP/s 0.100  MFU 25.0%  "
        "data 1.0%  mem 1.00 GiB  left 1m36s"
    )
    assert evaluation == "step   7/200  validation books: loss 2.0000, perplexity 7.39 (1,234 tokens, 1m15s)"


def test_units():
    assert [duration(s) for s in (0.44, 12, 59.7, 200, 7500, 363_600)] == [
        "0.4s",
        "12s",
        "1m00s",
        "3m20s",
        "2h05m",
        "4d05h",
    ]
