"""A run file to ask the planner about."""

import pytest
import yaml


@pytest.fixture
def run_file(tmp_path):
    """A run of Llama 3 8B over tensor and pipeline ranks, whose data nobody reads."""
    settings = {
        "run_folder": "unused",
        "model": "llama3-8b",
        "data": {"sources": {"text": {"folder": "unused"}}, "sequence_length": 8192},
        "train": {"steps": 1000, "global_batch_size": 64, "micro_batch_size": 1},
        "optimizer": {"learning_rate": 1e-3},
        "parallel": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)
