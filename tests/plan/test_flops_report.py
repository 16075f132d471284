"""The page of FLOPs: its sums, its times, its faults."""

import pytest

from megaxf.plan.errors import PlanError
from megaxf.plan.flops_report import Machine, Work, page, values, work_of
from tests.distributed.tiny import tiny_run
from tests.plan.shapes import shape

LLAMA3_8B = shape(128256, 4096, 32, 14336, 32, 8)
QWEN = shape(151936, 1024, 28, 3072, 16, 8, head_dim=128, tie_word_embeddings=True, qk_norm=True)


def test_each_count_is_named_and_they_add_up():
    found = values(Work(LLAMA3_8B, 8192, batch=512, tokens=15e12))
    assert found["parameters"] == {"total": 8030261248, "non_embedding": 6979588096, "matmul": 7504658432}
    assert found["model"] == {
        "token": 51471187968,
        "sequence": 8192 * 51471187968,
        "step": 512 * 8192 * 51471187968,
        "run": 15e12 * 51471187968,
    }
    assert sum(found["shares"].values()) == pytest.approx(1)
    # One of the two products of the scores, again in every layer.
    assert found["hardware"]["token"] - found["model"]["token"] == 2 * 32 * 32 * 128 * 8193 / 2
    text = page(found)
    for words in ("51,471,187,968", "61,066,469,376", "model FLOPs", "6N + 12LHQS", "12.52%", "non_embedding"):
        assert words in text


def test_a_tied_head_is_stored_once_and_multiplied_once():
    found = values(Work(QWEN, 4096))
    table = 151936 * 1024
    assert found["parameters"]["total"] - found["parameters"]["non_embedding"] == table
    assert found["shares"]["head"] == pytest.approx(6 * table / found["model"]["token"])


def test_time_and_utilisation_by_hand():
    """1,000 GPUs at 40 % of 1e15: 15e12 tokens of 51,471,187,968 FLOPs in 22.34 days."""
    found = values(Work(LLAMA3_8B, 8192, tokens=15e12), Machine("a", 1e15, 1000, mfu=0.4))["machine"]
    assert found["time"]["days"] == pytest.approx(15e12 * 51471187968 / 4e17 / 86400)
    assert found["time"]["gpu_hours"] == pytest.approx(24000 * found["time"]["days"])
    measured = Machine("a", 989e12, speed=5762)
    plain = values(Work(LLAMA3_8B, 8192), measured)["machine"]["utilisation"]
    again = values(Work(LLAMA3_8B, 8192, recompute="full"), measured)["machine"]["utilisation"]
    assert round(100 * plain["full square"], 1) == 33.7
    assert round(100 * plain["model"], 1) == 30.0
    assert plain["hardware"] < again["hardware"]
    assert {name: share for name, share in plain.items() if name != "hardware"} == {
        name: share for name, share in again.items() if name != "hardware"
    }


def test_a_run_says_what_it_computes_again():
    run = tiny_run(train={"recompute": "full", "recompute_every": 2, "dropout": 0.1, "attention_backend": "reference"})
    work = work_of(run)
    assert work[2:6] == ("full", 2, True, False)
    assert (work.batch, work.sequence_length) == (run.train.global_batch_size, run.data.sequence_length)
    assert work.tokens == run.train.steps * work.batch * work.sequence_length


@pytest.mark.parametrize(
    ("work", "machine", "message"),
    [
        (Work(QWEN, 0), None, "--sequence-length = 0 is not a number above 0"),
        (Work(QWEN, 8, tokens=-1.0), None, "--tokens = -1 is not a number above 0"),
        (Work(QWEN, 8), Machine("a", 1e15, 0), "--gpus = 0 is not"),
        (Work(QWEN, 8), Machine("a", 1e15, 1, mfu=40), "--mfu = 40 is more than the whole peak; write 40 % as 0.4"),
    ],
)
def test_faults(work, machine, message):
    with pytest.raises(PlanError, match=message):
        values(work, machine)
