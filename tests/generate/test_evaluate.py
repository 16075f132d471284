"""The loss on texts is transformers' loss and training's validation loss; each token is counted once."""

import json
import math

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from data_pipeline.format.dataset import open_dataset
from data_pipeline.rows.evaluation import EvaluationRows
from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.training import train_sentencepiece
from launch.megaxf import main
from megaxf.checkpoint import save_weights
from megaxf.generate import GenerateError
from megaxf.generate.evaluate import Rule, Score, evaluate, total
from megaxf.generate.texts import Window, open_texts, windows
from megaxf.models.loss import chunked_cross_entropy
from tests.data_pipeline.kit import build

TEXTS = ["def f(x):\n    return x + 1\n" * 4, "é", "class A:\n    pass  # ünïcode\n" * 9, "x = 1\n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer, a text of its own in a file each, the same as JSONL, and a shard folder of it."""
    folder = tmp_path_factory.mktemp("texts")
    for name in ("tokenizer", "notes"):
        (folder / name).mkdir()
    train_sentencepiece(["".join(TEXTS) * 3], folder / "tokenizer", vocab_size=300)
    for number, text in enumerate(TEXTS):
        (folder / f"notes/{number}.txt").write_text(text)
    (folder / "notes.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    build(str(folder / "notes.jsonl"), output=folder / "shards", tokenizer=folder / "tokenizer")
    return folder


@pytest.fixture
def tokenizer(folder):
    return load_tokenizer(folder / "tokenizer")


@pytest.fixture
def model(make_model):
    return make_model(vocab_size=300)


def theirs(model):
    """The same model in transformers."""
    config = model.config.model_dump(exclude={"family", "rope_scaling", "rope_theta", "qk_norm", "sliding_window"})
    rope = {"rope_type": "default", "rope_theta": model.config.rope_theta}
    peer = LlamaForCausalLM(LlamaConfig(**config, rope_parameters=rope, attn_implementation="eager")).eval()
    peer.load_state_dict(model.state_dict())
    return peer


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", ["notes", "notes.jsonl", "shards"])
def test_documents_have_transformers_loss(folder, tokenizer, model, name, batch_size):
    """Each after an end of a document; the long one in windows as of Hugging Face's page on perplexity."""
    score = evaluate(
        model, open_texts(str(folder / name), tokenizer, "train"), tokenizer.eod_id, Rule(20, 8), batch_size=batch_size
    )
    peer, sums, counts = theirs(model), 0.0, 0
    for text in TEXTS:
        ids = torch.tensor([[tokenizer.eod_id, *tokenizer.encode(text)]])
        previous = 1
        for begin in range(0, ids.shape[1], 8):
            end = min(begin + 21, ids.shape[1])
            labels = ids[:, begin:end].clone()
            labels[:, : previous - begin] = -100
            count = (labels[:, 1:] != -100).sum().item()
            sums += peer(ids[:, begin:end], labels=labels).loss.item() * count
            counts, previous = counts + count, end
            if end == ids.shape[1]:
                break
    assert (score.tokens, score.documents) == (counts, 4) == (sum(len(tokenizer.encode(text)) for text in TEXTS), 4)
    assert score.loss == pytest.approx(sums / counts, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(sums / counts), rel=1e-4)
    size = sum(len(text.encode()) for text in TEXTS)
    assert (score.text_bytes, score.bits_per_byte) == (size, pytest.approx(sums / math.log(2) / size, rel=1e-5))


def test_packed_is_the_validation_loss_of_training(folder, tokenizer, model):
    score = evaluate(
        model, open_texts(str(folder / "shards"), tokenizer, "train"), tokenizer.eod_id, Rule(16, packed=True)
    )
    rows = EvaluationRows(open_dataset(folder / "shards", "train"), 16, False)
    batch = rows.rows(0, len(rows))
    tokens, labels = torch.tensor(batch.tokens), torch.tensor(batch.labels)
    with torch.no_grad():
        nll = chunked_cross_entropy(model(tokens), model.head_weight(), labels)[1].sum().item()
    assert score.tokens == (labels != -100).sum().item()
    assert score.nll == pytest.approx(nll, rel=1e-5)


@pytest.mark.parametrize("length", [1, 4, 7, 30])
@pytest.mark.parametrize("stride", [1, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 29])
def test_each_token_is_counted_once_with_its_context(length, stride, size):
    stride = min(stride, length)
    tokens, counted = list(range(100, 100 + size)), []
    for window in windows([tokens[:3], [], tokens[3:]], length, stride):
        assert 2 <= len(window.tokens) <= length + 1
        for target in window.tokens[window.counted :]:
            context = target - window.tokens[0]
            assert context >= min(length - stride, target - 100) and context >= 1
            counted.append(target)
    assert counted == tokens[1:]


def test_windows_of_an_example():
    found = list(windows([[1, 2, 3, 4, 5, 6]], 3, 2))
    assert found == [Window([1, 2, 3, 4], 1), Window([3, 4, 5, 6], 2)]


def test_all_sources_together():
    scores = [Score("a", 6.0, 3, 1, 10, 1.0), Score("b", 2.0, 5, 2, 2, 0.5)]
    assert total(scores) == Score("all", 8.0, 8, 3, 12, 1.5) and total(scores).loss == 1.0
    assert math.isnan(Score("none").loss) and Score("far", 1e6, 1).perplexity == math.inf


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ({"length": 65}, {}, "sequence-length = 65 is beyond the model's longest sequence of 64"),
        ({"length": 0}, {}, "sequence-length = 0 must be 1 or more"),
        ({"length": 8, "stride": 9}, {}, "stride = 9 must lie between 1 and sequence-length = 8"),
        ({"length": 8, "stride": -1}, {}, "stride = -1 must lie"),
        ({"length": 8, "stride": 0}, {}, "stride = 0 must lie"),
        ({"length": 8}, {"batch_size": 0}, "batch-size = 0 must be 1 or more"),
        ({"length": 8}, {"limit": 0}, "limit = 0 must be 1 or more"),
    ],
)
def test_rules_without_meaning(folder, tokenizer, model, rule, options, message):
    with pytest.raises(GenerateError, match=message):
        evaluate(
            model, open_texts(str(folder / "notes"), tokenizer, "train"), tokenizer.eod_id, Rule(**rule), **options
        )


def test_documents_begin_after_the_opening(folder, tokenizer, model):
    def loss(*arguments, **options):
        source = open_texts(str(folder / "notes"), tokenizer, "train")
        return evaluate(model, source, *arguments, **options).loss

    marked = loss(tokenizer.eod_id, Rule(20), opening=9)
    assert marked == loss(9, Rule(20)) != loss(tokenizer.eod_id, Rule(20))
    assert loss(tokenizer.eod_id, Rule(20, packed=True), opening=9) == loss(tokenizer.eod_id, Rule(20, packed=True))


def test_texts_with_nothing_to_predict(tmp_path, tokenizer, model):
    (tmp_path / "a.txt").touch()
    with pytest.raises(GenerateError, match=r"a.txt has no token to be predicted"):
        evaluate(model, open_texts(str(tmp_path / "a.txt"), tokenizer, "train"), tokenizer.eod_id, Rule(8))


def test_shards_of_another_tokenizer(folder, tmp_path, tokenizer):
    train_sentencepiece(["some other text entirely, 0123456789\n" * 50], tmp_path, vocab_size=290)
    with pytest.raises(GenerateError, match="made with another tokenizer than the model's"):
        open_texts(str(folder / "shards"), load_tokenizer(tmp_path), "train")


def test_the_command(folder, tmp_path, model, tokenizer, capsys):
    weights = dict(model.named_parameters())
    shapes = {name: weight.shape for name, weight in weights.items()}
    text = yaml.safe_dump({"model": model.config.model_dump()})
    save_weights(
        tmp_path / "checkpoints", shapes, lambda name: weights[name].detach(), {}, config=text,
        tokenizer=folder / "tokenizer",
    )  # fmt: skip
    capsys.readouterr()
    asked = ["evaluate", tmp_path, folder / "notes", folder / "shards", "--split", "train", "--sequence-length", 20]
    assert main([*map(str, asked), "--stride", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, second, both = found["scores"]
    assert first["loss"] == pytest.approx(second["loss"]) == pytest.approx(both["loss"])
    assert both["tokens"] == 2 * first["tokens"] and both["source"] == "all"
    assert found["context"].endswith("windows of 20 tokens every 8, each token counted once")
    assert main([*map(str, asked), "--limit", "2"]) == 0
    assert f"{len(tokenizer.encode(TEXTS[0])) + len(tokenizer.encode(TEXTS[1]))}" in capsys.readouterr().out
    for extra, message in ((["--harness", "x"], "either DATA"), (["--split", "test"], "has no test split")):
        assert main([*map(str, asked[:4]), *extra]) == 2 and message in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path), "--harness", "x"]) == 2
    assert "is no Hugging Face folder" in capsys.readouterr().err
