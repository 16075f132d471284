"""Records, and the numbers in them (field reports 102 and 104)."""

import json
import math
from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megaxf.parallel.mesh import build_mesh
from megaxf.plan.conventions import mfu
from megaxf.train.breakdown import OTHER, PARTS
from megaxf.train.evaluate import Evaluation
from megaxf.train.metrics import Recorder, TrainRecord, last_step, read_records, truncate
from megaxf.train.plots import curves, plot_loss, smooth
from megaxf.train.throughput import (
    find_peak,
    flops_per_token,
    hardware_flops_per_token,
    measure_matmul,
)
from megaxf.train.writers import TensorBoard
from tests.train.kit import assert_same_end, column, records, start


def record(step, loss=4.0):
    return TrainRecord(step, 100 * step, loss, 0.0, 1e-3, 1.0, 90, 0.5, 200.0, 0.1, 0.25, 0.3, 0.01, 1 << 30)


def test_mfu_by_hand():
    """1,000 tokens/s on 4 devices, 6e9 FLOPs a token, peak 1e13: 6e12 of 4e13."""
    assert mfu(6e9, 1000.0, 4, 1e13) == pytest.approx(0.15)


def test_recomputation_and_ranks_do_not_change_what_is_counted(make):
    plain, full = make(), make(train={"recompute": "full"})
    assert flops_per_token(plain, 16) == flops_per_token(full, 16)
    assert flops_per_token(full, 16) < hardware_flops_per_token(plain, 16) < hardware_flops_per_token(full, 16)
    # 6 x (2 layers x 24 x (2 x 60 + 2 x 20 + 3 x 44) + 61 x 24) matrices; 12 x 2 x 60 x (16 + 1) / 2 causal pairs.
    assert flops_per_token(plain, 16) == 6 * (2 * 24 * 292 + 61 * 24) + 12 * 2 * 60 * 8.5


def test_three_steps_of_four_rows_are_192_tokens(make):
    run = make(train={"steps": 6})
    start(run, stop_after=3)
    assert column(run, "tokens")[-1] == 192
    start(run)
    assert column(run, "tokens")[-1] == 384
    assert column(run, "idle_rows") == [0] * 6


def test_the_peak_is_as_set_or_measured(make):
    assert find_peak(make(metrics={"peak_tflops": 312.0}), build_mesh(), _cpu()) == (312e12, "as set")
    measured = find_peak(make(metrics={"peak_tflops": None}), build_mesh(), _cpu())
    assert measured.origin == "measured matrix product"
    assert measured.flops > 1e8
    assert measure_matmul(_cpu_dtype(), _cpu(), seconds=0.05) > 1e8


def _cpu():
    import torch

    return torch.device("cpu")


def _cpu_dtype():
    import torch

    return torch.bfloat16


def test_records_are_json_and_not_finite_is_null(tmp_path):
    recorder = Recorder(tmp_path / "metrics.jsonl", 0)
    recorder.train(record(1, loss=math.nan))
    recorder.evaluation(1, 100, Evaluation("books", 2.0, 50, 4, 0.1))
    recorder.close()
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["kind"], first["step"], first["loss"], first["mfu"], first["hfu"]) == ("train", 1, None, 0.25, 0.3)
    assert (second["source"], second["perplexity"]) == ("books", pytest.approx(math.e**2))
    assert (second["step"], second["tokens"], second["counted_tokens"]) == (1, 100, 50)


def test_truncation(tmp_path):
    file = tmp_path / "metrics.jsonl"
    truncate(file, 3)
    assert not file.exists()
    file.write_text("".join(f'{{"kind": "train", "step": {step}}}\n' for step in (0, 1, 2, 3, 3, 4)) + '{"st')
    assert [found["step"] for found in read_records(file)] == [0, 1, 2, 3, 3, 4]
    truncate(file, 3)
    assert [found["step"] for found in read_records(file)] == [0, 1, 2, 3, 3]
    truncate(file, 0)
    assert file.read_text() == ""


def line(step, **more):
    return json.dumps({"kind": "train", "step": step, **more}).encode() + b"\n"


@pytest.mark.parametrize("size", [10, 65_450, 200_000])
def test_the_last_record_may_be_of_any_size(tmp_path, size):
    """As that of a guard is, which names the documents of a large batch."""
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(line(1) + line(2, documents="d" * size) + b'{"kind": "tra')
    assert last_step(file) == 2
    file.write_bytes(line(3, documents="d" * size))
    assert last_step(file) == 3


@pytest.mark.parametrize(
    "damage", [b"\n", b"\0" * 40 + b"\n", b"\xff\xfe{}\n", b"5\n", b'{"step": 9}\n', b'{"kind": "tr\n']
)
def test_a_damaged_line_costs_no_other(tmp_path, damage):
    file, said = tmp_path / "metrics.jsonl", []
    file.write_bytes(line(1) + damage + line(2) + line(3) + damage + b'{"kind": "train", "step": \xc3')
    assert last_step(file) == 3
    assert [found["step"] for found in read_records(file, said.append)] == [1, 2, 3]
    passed_over = "is damaged and passed over: it is no record; restore the file to have it again"
    assert said == [f"{file}:{number} {passed_over}" for number in (2, 5)]
    truncate(file, 2, said.append)
    assert file.read_bytes() == line(1) + line(2)
    file.write_bytes(damage * 3)
    assert last_step(file) is None
    file.write_bytes(b"\0" * 70_000)
    assert last_step(file) is None


def scalars(folder, tag):
    board = EventAccumulator(str(folder))
    board.Reload()
    return [(event.step, round(event.value, 3)) for event in board.Scalars(tag)]


def test_tensorboard_over_steps_and_tokens_without_doubles_after_a_resume(tmp_path):
    for begin, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        recorder = Recorder(tmp_path / "metrics.jsonl", begin, [TensorBoard(tmp_path / "board", begin, 100 * begin)])
        recorder.evaluation(begin, 100 * begin, Evaluation("books", 2.0 + begin, 50, 4, 0.1))
        for step in steps:
            recorder.train(record(step, loss=float(step + begin)))
        recorder.close()
    assert scalars(tmp_path / "board", "train/loss") == [(1, 1.0), (2, 2.0), (3, 5.0), (4, 6.0)]
    by_tokens = tmp_path / "board" / "by_tokens"
    assert scalars(by_tokens, "train/loss") == [(100, 1.0), (200, 2.0), (300, 5.0), (400, 6.0)]
    assert scalars(by_tokens, "evaluation/books/loss") == [(0, 2.0), (200, 4.0)]
    assert scalars(tmp_path / "board", "throughput/mfu")[0] == (1, 0.25)


def test_the_plot(tmp_path):
    file, image = tmp_path / "metrics.jsonl", tmp_path / "loss.png"
    assert not plot_loss(file, image, "nothing yet")
    recorder = Recorder(file, 0)
    for step in range(1, 4):
        recorder.train(record(step, loss=5.0 - step if step < 3 else math.inf))
    recorder.evaluation(2, 200, Evaluation("books", 3.5, 50, 4, 0.1))
    recorder.close()
    train, evaluations, tokens_per_step = curves(file)
    assert train == ([1, 2], [4.0, 3.0])
    assert (evaluations, tokens_per_step) == ({"books": ([2], [3.5])}, 100.0)
    assert plot_loss(file, image, "a run")
    assert image.read_bytes().startswith(b"\x89PNG")


def test_smoothing_is_the_mean_of_the_last_values():
    assert smooth([1.0, 2.0, 3.0, 6.0], 2) == [1.0, 1.5, 2.5, 4.5]


def test_where_the_time_went_is_recorded_of_every_step(make):
    run = make(train={"steps": 5}, checkpoint={"every": 2})
    start(run)
    times, seconds = column(run, "times"), column(run, "seconds")
    assert all(set(one) == {*PARTS, OTHER} for one in times)
    for one, whole in zip(times, seconds, strict=True):
        saving = one["checkpoint"]
        assert sum(one.values()) - saving <= whole * (1 + 1e-9) <= sum(one.values()) * (1 + 1e-9)
        assert one["data"] > 0 and one["forward_backward"] > 0 and one["optimizer"] > 0
        assert one["communication"] == 0, "one process waits for nobody"
    stalls = [one["checkpoint"] for one in times]
    assert stalls[2] > stalls[1] and stalls[4] > stalls[3], "what steps 2 and 4 saved stands with the steps after them"


def test_numbers_of_many_names_have_a_tag_each(tmp_path):
    recorder = Recorder(tmp_path / "metrics.jsonl", 0, [TensorBoard(tmp_path / "board", 0, 0)])
    groups = {"gradient_norm": {"embedding": 0.5, "layers.0-15": math.inf}, "update_ratio": {"head": 0.125}}
    recorder.train(replace(record(1), times={"data": 0.25}, groups=groups))
    recorder.close()
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert line["groups"]["gradient_norm"] == {"embedding": 0.5, "layers.0-15": None}
    expected = {"time/data": 0.25, "gradient_norm/embedding": 0.5, "update_ratio/head": 0.125}
    assert {tag: scalars(tmp_path / "board", tag) for tag in expected} == {t: [(1, v)] for t, v in expected.items()}


def test_groups_of_layers_are_looked_at_in_the_steps_asked_for_and_change_none(make):
    run = make(metrics={"tensorboard": False, "statistics_every": 3, "layer_groups": 1})
    start(run)
    assert [one["step"] for one in records(run) if one["groups"]] == [1, 4, 7, 10]
    groups = ["embedding", "layers.0-1", "head"]
    assert {name: list(values) for name, values in records(run)[0]["groups"].items()} == {
        "gradient_norm": groups,
        "update_ratio": groups,
        "activation_rms": ["layers.0-1"],
    }
    plain = make(run_folder=run.run_folder + "-plain", metrics={"tensorboard": False, "statistics_every": 0})
    start(plain)
    assert not any(one["groups"] for one in records(plain))
    assert_same_end(run, plain)
