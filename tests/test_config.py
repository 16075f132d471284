"""The run file: every fault is found, at once, with its full key and what to do (field report 93)."""

import pickle

import pytest
import yaml

from megaxf.config import ConfigError, check_world, load_run, to_yaml, validate

RUN = """\
run_folder: runs/test
model: tiny
data:
  sequence_length: 64
  sources:
    books: {folder: tokens/books}
train: {steps: 100, global_batch_size: 8, micro_batch_size: 2}
optimizer: {learning_rate: 3e-4}
"""


@pytest.fixture
def load(tmp_path):
    """`load(override, ...)` of the run file above."""
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return lambda *overrides: load_run(path, list(overrides))


def problems(load, *overrides):
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    return caught.value.problems


def test_defaults_and_the_named_model(load):
    run = load()
    assert (run.seed, run.train.precision, run.optimizer.betas, run.engine.zero_stage) == (1234, "bf16", (0.9, 0.95), 1)
    assert (run.model.family, run.model.hidden_size, run.model.vocab_size, run.model.head_dim) == ("llama", 64, 512, 16)


def test_overrides_are_yaml(load):
    run = load(
        "optimizer.betas=[0.8, 0.9]", "train.compile=true", "seed=0x10", "data.sources.code={folder: c, weight: 2}"
    )
    assert (run.optimizer.betas, run.train.compile, run.seed) == ((0.8, 0.9), True, 16)
    assert run.data.sources["code"].weight == 2.0
    assert run.data.sources["books"].folder == "tokens/books"
    assert load("optimizer.learning_rate=1").optimizer.learning_rate == 1.0
    assert load("model=tiny", "model.vocab_size=600", "evaluate.sequences=null").model.vocab_size == 600


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("sed=1", "did you mean seed?"),
        ("model.hiden_size=8", "did you mean model.hidden_size?"),
        ("data.sequence_lenght=8", "did you mean data.sequence_length?"),
        ("data.sources.books.fodler=x", "did you mean data.sources.books.folder?"),
        ("train.step=8", "did you mean train.steps?"),
        ("optimizer.learning_rat=1e-4", "did you mean optimizer.learning_rate?"),
        ("schedule.warm_up_steps=1", "did you mean schedule.warmup_steps?"),
        ("engine.zero_stag=1", "did you mean engine.zero_stage?"),
        ("parallel.tensor_parallel=2", "did you mean parallel.tensor_parallel_size?"),
        ("train.zero_stage=2", "did you mean engine.zero_stage?"),
        ("evaluate.evry=1", "did you mean evaluate.every?"),
        ("checkpoint.keep=1", "did you mean checkpoint.keep_last?"),
        ("metrics.tensorbord=true", "did you mean metrics.tensorboard?"),
        ("learning_rate=1e-4", "did you mean optimizer.learning_rate?"),
        ("train.betas=[0, 0]", "did you mean optimizer.betas?"),
        ("metrics.xyz=1", "known here: tensorboard, wandb, statistics_every, layer_groups, peak_tflops"),
    ],
)
def test_misspelt_keys_name_the_nearest(load, override, advice):
    key = override.partition("=")[0]
    assert problems(load, override) == [f"{key} is not a setting; {advice}"]


def test_misspelt_keys_of_a_kind(load):
    assert problems(load, "model.rope_scaling={type: yarn, facto: 2}") == [
        "model.rope_scaling.factor is missing; it has no default",
        "model.rope_scaling.original_max_position_embeddings is missing; it has no default",
        "model.rope_scaling.facto is not a setting; did you mean model.rope_scaling.factor?",
    ]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("seed=null", "seed = null: should be a whole number"),
        ("seed=-1", "seed = -1: should be greater than or equal to 0"),
        (f"seed={2**63}", f"seed = {2**63}: should be less than {2**63}"),
        (f"train.steps={2**63}", f"train.steps = {2**63}: should be less than {2**63}"),
        (f"train.steps={2**54}", f"train.steps = {2**54} of 512 tokens are more than can be counted, 2^63; use fewer "
         "steps, or smaller ones"),
        ("model.num_attention_heads=3000000001",
         "model.num_attention_heads = 3000000001: should be less than or equal to 65536"),
        ("guards.timeout_seconds=1e300",
         "guards.timeout_seconds = 1e+300: should be less than or equal to 1000000000"),
        ("model=null", "model = null: should be a mapping of settings"),
        ("run_folder=", "run_folder = null: should be text"),
        ("run_folder=''", 'run_folder = "": should not be empty'),
        ("model.hidden_size=-64", "model.hidden_size = -64: should be greater than 0"),
        ("model.rope_scaling={type: linaer, factor: 2}",
         "model.rope_scaling.type = \"linaer\": should be one of 'linear', 'ntk', 'yarn', 'llama3'"),
        ("model.rope_scaling={factor: 2}", "model.rope_scaling needs the setting 'type', which says what kind it is"),
        ("data.sources={}", "data.sources = {}: should have an entry"),
        ("data.sources=[1]", "data.sources = [1]: should be a mapping"),
        ("data.sources.books.weight=0", "data.sources.books.weight = 0: should be greater than 0"),
        ("train=null", "train = null: should be a mapping of settings"),
        ("train.steps=true", "train.steps = true: should be a whole number"),
        ("train.steps=10.0", "train.steps = 10.0: should be a whole number"),
        ("train.steps='10'", 'train.steps = "10": should be a whole number (this is text; write 10 without quotes)'),
        ("train.compile='true'", 'train.compile = "true": should be true or false (this is text; write true '
         "without quotes)"),
        ("train.compile=no", 'train.compile = "no": should be true or false'),
        ("train.precision=fp64", "train.precision = \"fp64\": should be 'bf16', 'fp16' or 'fp32'"),
        ("parallel.tensor_parallel_size=0", "parallel.tensor_parallel_size = 0: should be greater than 0"),
        ("parallel.pipeline_layers=[2, 0]", "parallel.pipeline_layers[1] = 0: should be greater than 0"),
        ("parallel.order=[tensor, date]",
         "parallel.order[1] = \"date\": should be 'pipeline', 'data', 'context' or 'tensor'"),
        ("optimizer.learning_rate='1e-4'",
         'optimizer.learning_rate = "1e-4": should be a number (this is text; write 0.0001 without quotes)'),
        ("optimizer.learning_rate=.nan", "optimizer.learning_rate = .nan: should be a finite number"),
        ("optimizer.betas=[0.9, 1.0]", "optimizer.betas[1] = 1.0: should be less than 1"),
        ("optimizer.betas=0.9", "optimizer.betas = 0.9: should be a list"),
        ("schedule.warmup_steps=-1", "schedule.warmup_steps = -1: should be greater than or equal to 0"),
        ("engine.zero_stage=4", "engine.zero_stage = 4: should be less than or equal to 3"),
        ("engine.zero_stage=true", "engine.zero_stage = true: should be a whole number"),
        ("evaluate.every=null", "evaluate.every = null: should be a whole number"),
        ("checkpoint.keep_last=0", "checkpoint.keep_last = 0: should be greater than 0"),
        ("metrics.peak_tflops=-1", "metrics.peak_tflops = -1: should be greater than 0"),
    ],
)  # fmt: skip
def test_wrong_values_name_key_value_and_reason(load, override, sentence):
    assert problems(load, override) == [sentence]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["data.sequence_length=257"], "data.sequence_length = 257 is beyond model.max_position_embeddings = 256"),
        (["data.sources.books.weight=2"], "data.sources.books.weight = 2.0 has no effect with one source"),
        (["train.micro_batch_size=3"],
         "train.micro_batch_size = 3 does not divide train.global_batch_size = 8; use one of 1, 2, 4, 8"),
        (["schedule.warmup_steps=101"], "schedule.warmup_steps = 101 is longer than the run, train.steps = 100"),
        (["schedule={kind: warmup_stable_decay, warmup_steps: 60, decay_steps: 41}"],
         "schedule.warmup_steps + schedule.decay_steps = 101 is longer than the run, train.steps = 100"),
        (["schedule.min_learning_rate=1e-3"],
         "schedule.min_learning_rate = 0.001 is above the peak, optimizer.learning_rate = 0.0003"),
        (["schedule.decay_steps=3"], "schedule.decay_steps: no effect with schedule.kind = cosine"),
        (["schedule.kind=linear", "schedule.decay_shape=sqrt"],
         "schedule.decay_shape: no effect with schedule.kind = linear"),
        (["schedule.kind=constant", "schedule.min_learning_rate=1e-5"],
         "schedule.min_learning_rate: no effect with schedule.kind"),
        (["data.over_max_epochs=refuse"],
         "data.over_max_epochs = refuse has no effect, since no source has max_epochs"),
        (["guards.replica_check_every=5", "engine.zero_stage=3"],
         "guards.replica_check_every = 5 has no effect with engine.zero_stage = 3"),
        (["data.phases=[{from_step: 9, sequence_length: 64}]"],
         "data.phases[0] changes nothing: sequence_length is as it was before step 9; remove the phase"),
        (["data.phases=[{from_step: 9, global_batch_size: 4},"
          " {from_step: 11, global_batch_size: 4, shares: {books: 1}}]"],
         "data.phases[1] changes nothing: global_batch_size, shares is as it was before step 11"),
    ],
)  # fmt: skip
def test_sections_agree_and_every_setting_has_an_effect(load, overrides, sentence):
    (problem,) = problems(load, *overrides)
    assert problem.startswith(sentence)


def test_what_has_an_effect_is_taken(load):
    assert load("data.over_max_epochs=refuse", "data.sources.books.max_epochs=2")
    assert load("guards.replica_check_every=5", "engine.zero_stage=2") and load("engine.zero_stage=3")
    phases = "{from_step: 9, sequence_length: 32}, {from_step: 11, sequence_length: 64, global_batch_size: 8}"
    assert len(load(f"data.phases=[{phases}]").data.phases) == 2
    assert load("checkpoint.every=999", "evaluate.every=999"), "a trial of few steps takes the run's file as it is"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["checkpoint.every=5", "checkpoint.keep_every=12"], "checkpoint.keep_every = 12 meets no checkpoint"),
        (["checkpoint.keep_every=10"], "checkpoint.keep_every = 10 meets no checkpoint, with checkpoint.every = 0"),
        (["checkpoint.every=9", "checkpoint.keep_every=108"], "checkpoint.keep_every = 108 meets no checkpoint"),
        (["checkpoint.every=5", "checkpoint.export_every=10"], "export_every has no effect with checkpoint.export"),
        (["run_folder=s3://runs/a"], "run_folder = s3://runs/a is a URL, and metrics are written on a disk"),
    ],
)
def test_checkpoints_that_are_kept_are_saved(load, overrides, sentence):
    (problem,) = problems(load, *overrides)
    assert sentence in problem
    assert load("checkpoint.every=5", "checkpoint.keep_every=20", "checkpoint.folder=s3://runs/a")


def test_all_faults_come_at_once(load):
    found = problems(
        load,
        "model.family=gpt5",
        "train.micro_batch_size=3",
        "optimizer.learning_rate=abc",
        "sed=1",
        "nonsense",
        "seed.x.y=1",
    )
    assert [problem.split(" ")[0] for problem in found] == [
        "'nonsense'", "model.family:", "seed", "optimizer.learning_rate", "sed", "train.micro_batch_size",
    ]  # fmt: skip


def test_overrides_that_are_none(load):
    assert problems(load, "train.steps") == ["'train.steps' is not an override; write section.key=value"]
    assert problems(load, "run_folder.x=1") == [
        "run_folder.x cannot be set: run_folder = 'runs/test' has no settings below it"
    ]
    assert problems(load, "train.steps={")[0].startswith("train.steps={: not valid YAML")
    for value, kind in (
        ("!!int x", "int"),
        ('!!int ""', "int"),
        ("!!bool maybe", "bool"),
        ("!!timestamp x", "timestamp"),
    ):
        (problem,) = problems(load, f"train.steps={value}")
        assert problem.startswith(f"train.steps={value}: not valid YAML:") and f"is not of the type !!{kind}" in problem
    assert "recursive node" in problems(load, "seed=&a [*a]")[0]
    assert "nested too deeply" in problems(load, f"seed={'[' * 5000}")[0]


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: 1 error\n  - there is no such file"):
        load_run(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="is not a mapping of settings"):
        load_run(tmp_path / "list.yaml")
    (tmp_path / "double.yaml").write_text("seed: 1\nseed: 2\n")
    with pytest.raises(ConfigError, match="the key seed stands twice"):
        load_run(tmp_path / "double.yaml")
    (tmp_path / "model.yaml").write_text("model: huge\n")
    with pytest.raises(ConfigError, match=r"model = 'huge' is neither a file nor a model of configs/models: 125m, 1b"):
        load_run(tmp_path / "model.yaml")
    (tmp_path / "model.yaml").write_text(f"model: {'x' * 300}\n")
    with pytest.raises(ConfigError, match=r"model = 'x+' is neither a file nor a model"):
        load_run(tmp_path / "model.yaml")
    (tmp_path / "empty.yaml").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        load_run(tmp_path / "empty.yaml")
    assert caught.value.problems == [
        f"{key} is missing; it has no default" for key in ("run_folder", "model", "data", "train", "optimizer")
    ]


def test_scalars_are_read_as_people_read_them(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN.replace("books:", "no:").replace("3e-4", "3E-4"))
    run = load_run(tmp_path / "run.yaml")
    assert list(run.data.sources) == ["no"]
    assert run.optimizer.learning_rate == 3e-4


def test_anchors_and_merges(tmp_path):
    source = "{folder: a, weight: 3}"
    text = RUN.replace("books: {folder: tokens/books}", f"a: &a {source}\n    b: {{<<: *a, folder: b}}")
    (tmp_path / "run.yaml").write_text(text)
    source = load_run(tmp_path / "run.yaml").data.sources["b"]
    assert source.model_dump(exclude_unset=True) == {"folder": "b", "weight": 3.0}


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["run_folder='1e-4'", "data.sources={no: {folder: '012'}}"],
        ["schedule={kind: warmup_stable_decay, decay_steps: 7, decay_shape: sqrt}", "optimizer.eps=1e-12"],
        [
            "model.rope_scaling={type: yarn, factor: 4, original_max_position_embeddings: 64}",
            "optimizer.betas=[0, 0.5]",
        ],
    ],
)
def test_the_resolved_run_is_read_back_equal(load, tmp_path, overrides):
    run = load(*overrides)
    text = to_yaml(run)
    (tmp_path / "resolved.yaml").write_text(text)
    assert load_run(tmp_path / "resolved.yaml") == run
    assert yaml.safe_load(text) == run.model_dump(mode="json"), "other readers of YAML see the same"


def test_check_world(load):
    run = load("train.global_batch_size=48")
    for world_size in (1, 2, 3, 24):
        check_world(run, world_size)
    with pytest.raises(
        ConfigError, match=r"train.global_batch_size = 48 is not a multiple .* = 2 x 5; use .* = 40 or 50"
    ):
        check_world(run, 5)
    with pytest.raises(ConfigError, match=r"= 2 x 64; use train.global_batch_size = 128, or another number"):
        check_world(run, 64)
    with pytest.raises(ConfigError, match="world size 0 is not a number of processes"):
        check_world(run, 0)


def test_runs_and_errors_survive_pickling(load):
    run = load("model.rope_scaling={type: linear, factor: 2}")
    assert pickle.loads(pickle.dumps(run)) == run
    error = ConfigError("run.yaml", ["a", "b"])
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "run.yaml: 2 errors\n  - a\n  - b"


def test_every_shipped_model_makes_a_run(load):
    with pytest.raises(ConfigError):
        validate({"model": "tiny"}, "test")
    for name in ("125m", "1b", "llama3-405b", "mistral-7b", "qwen3-0.6b"):
        assert load(f"model={name}").model.num_hidden_layers > 2
