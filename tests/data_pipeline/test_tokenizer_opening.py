"""What a tokenizer's own rule puts before a text."""

import json

import pytest
import tokenizers
from tokenizers import models, processors

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.opening import opening_id
from data_pipeline.tokenizer.training import train_sentencepiece

WORDS = {"a": 0, "<s>": 1, "</s>": 2}


def save_json(folder, template):
    tokenizer = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="a"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("template", "settings", "expected"),
    [
        (None, {}, None),
        ("<s> $A", {}, 1),
        ("<s> $A </s>", {}, 1),
        ("$A </s>", {}, None),
        ("<s> $A", {"add_bos_token": False}, None),
        (None, {"add_bos_token": True}, 1),
    ],
)
def test_a_tokenizer_json(tmp_path, template, settings, expected):
    save_json(tmp_path, template)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", **settings}))
    assert opening_id(tmp_path) == expected


@pytest.mark.parametrize("settings", ["not JSON", "[]", None])
def test_a_sentencepiece_model_says_nothing_by_itself(tmp_path, settings):
    train_sentencepiece(["some text of a tokenizer\n" * 30], tmp_path, vocab_size=290)
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(settings)
    assert opening_id(tmp_path) is None


@pytest.mark.parametrize("settings", [{"tokenizer_class": "LlamaTokenizer"}, {"add_bos_token": True}])
def test_a_sentencepiece_model_with_the_rule_of_llama(tmp_path, monkeypatch, settings):
    train_sentencepiece(["some text of a tokenizer\n" * 30], tmp_path, vocab_size=290)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.bos_id = 5
    monkeypatch.setattr("data_pipeline.tokenizer.opening.load_tokenizer", lambda folder: tokenizer)
    assert opening_id(tmp_path) == 5
