from pathlib import Path

import pytest

import megaxf.convert
import megaxf.models
from megaxf.convert import gpt2
from megaxf.convert.families import of_settings
from megaxf.models.registry import config_type, families, family
from tests.distributed.tiny import tiny_engine, tiny_run, train_steps

MODEL = "from megaxf.models.gpt2 import TENSOR_PLAN, Model\n"
CONFIG = """
from typing import Literal
from megaxf.models import gpt2_config

class Config(gpt2_config.Config):
    family: Literal["mine"] = "mine"
"""
CONVERT = "from megaxf.convert.gpt2 import *\nMODEL_TYPES = ('their_name',)\n"


def test_every_family_has_what_the_library_asks_for():
    assert families() == ["gpt2", "gpt_neox", "llama"]
    for name in families():
        module = family(name)
        assert config_type(name) and module.Model and module.TENSOR_PLAN
        assert (Path(megaxf.models.__file__).parent / f"{name}.py").is_file()


def test_unknown_family_is_named():
    with pytest.raises(ValueError, match="'mamba' is not a model family; known: gpt2, gpt_neox, llama"):
        family("mamba")
    with pytest.raises(ValueError, match="'mamba' is not a model family"):
        config_type("mamba")
    with pytest.raises(ValueError, match="'attention' is not a model family"):
        family("attention")


def test_a_family_is_a_file_and_nothing_else_is_touched(tmp_path, monkeypatch):
    """Or two with its settings; with what it has in Hugging Face's folders, if anything, in a file of the same name."""
    for package, files in (
        (megaxf.models, {"mine.py": MODEL, "mine_config.py": CONFIG}),
        (megaxf.convert, {"mine.py": CONVERT}),
    ):
        folder = tmp_path / package.__name__
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    assert families() == ["gpt2", "gpt_neox", "llama", "mine"]
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    run = tiny_run({"family": "mine", "max_position_embeddings": 18, **sizes})
    assert run.model.structure.learned_positions == 18 and train_steps(tiny_engine(run), run, range(1))[0].loss > 0
    assert of_settings({"model_type": "their_name"}).RULES is gpt2.RULES
