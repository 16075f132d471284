"""Checkpoints of engines on several ranks: what does not depend on the layout, and faults of one rank."""

import re

import torch

from megaxf.checkpoint import CheckpointError, load, load_latest, read_weights, save
from megaxf.parallel.mesh import build_mesh
from tests.distributed.tiny import tiny_engine, tiny_run

ODD = {"hidden_size": 33, "intermediate_size": 45, "vocab_size": 61}
"""No size is a multiple of two ranks."""
LAYOUTS = [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3)]


def built(stage):
    run = tiny_run(ODD, train={"gradient_clip": 0.7}, engine={"zero_stage": stage})
    return run, tiny_engine(run)


def save_untrained(stage, folder):
    _, engine = built(stage)
    return save(folder, 0, engine, {}, build_mesh())


def test_untrained_weights_do_not_depend_on_the_layout(run_on, tmp_path):
    """Also where parameters lie in flat buffers with padding."""
    found = {}
    for ranks, stage in LAYOUTS:
        path = run_on(ranks, save_untrained, stage, str(tmp_path / f"{ranks}-{stage}"))[0]
        found[ranks, stage] = dict(read_weights(path))
    first = found[1, 0]
    for weights in found.values():
        assert weights.keys() == first.keys() and all(torch.equal(weights[name], first[name]) for name in first)
        assert all(weight.count_nonzero() > 0 for weight in weights.values())


def fail_on_rank_1(folder):
    """What each rank sees where only rank 1 cannot write, then whether a save succeeds."""
    import resource

    mesh = build_mesh()
    _, engine = built(1)
    save(folder, 1, engine, {}, mesh)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if mesh.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        save(folder, 2, engine, {}, mesh, keep_last=1)
    except CheckpointError as error:
        message = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    save(folder, 3, engine, {}, mesh)
    return message


def test_one_rank_with_a_full_disk_stops_all(ranks2, tmp_path):
    messages = ranks2(fail_on_rank_1, str(tmp_path))
    assert all("rank 1: " in message and "cannot be written: File too large" in message for message in messages)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def not_finite_on_one_owner(folder):
    mesh = build_mesh()
    _, engine = built(2)
    for piece in engine.pieces():
        if piece.key == "lm_head.weight/master":
            piece.values[0] = torch.nan
    try:
        save(folder, 1, engine, {}, mesh)
    except CheckpointError as error:
        return str(error)
    return None


def test_a_weight_that_is_not_finite_stops_all(ranks2, tmp_path):
    messages = ranks2(not_finite_on_one_owner, str(tmp_path))
    assert all("not finite: lm_head.weight (master)" in message for message in messages)


def separate_disks(folders):
    """Two nodes, each with its own folder: what rank 0 finds decides, and a rank that lacks it stops both."""
    mesh = build_mesh()
    _, engine = built(0)
    own = folders[mesh.rank]
    path = f"{own}/step-00000005"
    try:
        load(path, engine, mesh)
    except CheckpointError as error:
        failure = str(error)
    found = load_latest(own, engine, mesh)
    return failure, found["step"]


def test_ranks_agree_on_one_checkpoint_or_stop(run_on, tmp_path):
    for folder, steps in (("a", (4, 5)), ("b", (4,))):
        for step in steps:
            run_on(1, save_at, str(tmp_path / folder), step)
    results = run_on(2, separate_disks, [str(tmp_path / "a"), str(tmp_path / "b")])
    lacking = r"rank 1: .*step-00000005/tensors/__0_\d.distcp is missing"
    assert all(re.search(lacking, failure) for failure, _ in results)
    assert [step for _, step in results] == [5, 5]


def save_at(folder, step):
    _, engine = built(0)
    save(folder, step, engine, {}, build_mesh())
