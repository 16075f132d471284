"""A task of one's own through the lm-evaluation-harness has the accuracy that our own scores give."""

import json

import pytest
import yaml

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.training import train_sentencepiece
from launch.megaxf import main
from megaxf.checkpoint import save_weights
from megaxf.generate import Sampling, generate

pytest.importorskip("lm_eval", reason="the extra harness is not installed: pip install 'megaxf[harness]'")

QUESTIONS = [("def f(x): return", [" x + 1", " class"]), ("class A", [":", " +"]), ("x =", [" 1", " def"])]
TASK = {
    "task": "megaxf_tiny",
    "dataset_path": "json",
    "validation_split": "validation",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{label}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def test_accuracy_of_a_local_task(tmp_path, make_model, capsys):
    model = make_model(vocab_size=300)
    (tmp_path / "tokenizer").mkdir()
    text = "def f(x):\n    return x + 1\n\nclass A:\n    pass\n" * 20
    train_sentencepiece([text], tmp_path / "tokenizer", vocab_size=300)
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    weights = dict(model.named_parameters())
    config = yaml.safe_dump({"model": model.config.model_dump()})
    shapes = {name: weight.shape for name, weight in weights.items()}
    save_weights(
        tmp_path / "run/checkpoints", shapes, lambda name: weights[name].detach(), {}, config=config,
        tokenizer=tmp_path / "tokenizer",
    )  # fmt: skip
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "hf"), "--dtype", "float32"]) == 0

    def score(question, choice):
        asked = tokenizer.encode(question)
        tokens = tokenizer.encode(question + choice)
        (found,) = generate(model, [tokens], max_new_tokens=0, sampling=Sampling(), prompt_logprobs=True)
        return sum(found.prompt_logprobs[len(asked) - 1 :])

    best = [max((0, 1), key=lambda k, one=one: score(one[0], one[1][k])) for one in QUESTIONS]
    labels = [best[0], best[1], 1 - best[2]]  # Two of three are right.
    rows = [{"question": q, "choices": c, "label": label} for (q, c), label in zip(QUESTIONS, labels, strict=True)]
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = {"dataset_kwargs": {"data_files": {"validation": str(tmp_path / "tasks/rows.jsonl")}}}
    (tmp_path / "tasks/tiny.yaml").write_text(yaml.safe_dump(TASK | files))
    capsys.readouterr()
    asked = ["evaluate", str(tmp_path / "hf"), "--harness", "megaxf_tiny", "--harness-include", str(tmp_path / "tasks")]
    assert main([*asked, "--dtype", "float32", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tasks"]["megaxf_tiny"]["acc,none"] == pytest.approx(2 / 3)
    assert main([*asked[:3], "nosuch"]) == 2 and "the harness has no task nosuch" in capsys.readouterr().err
