"""Train, export, import, train on: what transformers measures is what the trainer measured."""

import json

import pytest
import torch
import transformers

from data_pipeline.format.dataset import open_dataset
from launch.megaxf import main
from tests.train.kit import LENGTH, checkpoints, records, start, tiny_run, write_data


@pytest.mark.parametrize("tied", [False, True])
def test_from_training_to_transformers_and_back(tmp_path, tied):
    write_data(tmp_path / "data", validation_rows=10)
    model = {"rms_norm_eps": 1e-2, "tie_word_embeddings": tied, "rope_theta": 777.0}
    run = tiny_run(tmp_path, model=model, train={"steps": 3}, schedule={"warmup_steps": 0})
    start(run)
    assert main(["convert", run.run_folder, str(tmp_path / "hf")]) == 0
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", attn_implementation="eager")
    assert json.loads((tmp_path / "hf/config.json").read_text())["tie_word_embeddings"] is tied
    assert torch.equal(oracle.lm_head.weight, oracle.model.embed_tokens.weight) is tied
    ids = torch.as_tensor(open_dataset(tmp_path / "data", "validation").read(0, 10 * LENGTH + 1).astype("int64"))
    with torch.no_grad():
        logits = oracle(ids[:-1].view(10, LENGTH)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[1:]).item()
    assert records(run, "evaluation")[-1]["loss"] == pytest.approx(loss, rel=1e-5)

    onward = tiny_run(tmp_path, run_folder=str(tmp_path / "next"), model=model, init={"from": str(tmp_path / "hf")})
    _, said = start(onward)
    assert not any("changed" in sentence for sentence in said), said
    assert records(onward, "evaluation")[0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert records(onward)[0]["step"] == 1 and checkpoints(onward) == [12]
