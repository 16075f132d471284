from pathlib import Path

import pytest

import megaxf.models
from megaxf.models.registry import FAMILIES, config_type, family


def test_every_family_has_what_the_library_asks_for():
    for name in FAMILIES:
        module = family(name)
        assert config_type(name) and module.Model and module.TENSOR_PLAN
        assert (Path(megaxf.models.__file__).parent / f"{name}.py").is_file()


def test_unknown_family_is_named():
    with pytest.raises(ValueError, match="'mamba' is not a model family; known: llama, gpt2, gpt_neox"):
        family("mamba")
    with pytest.raises(ValueError, match="'mamba' is not a model family"):
        config_type("mamba")
