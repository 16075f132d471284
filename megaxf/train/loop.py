"""The training loop: from a run and a place among ranks to a trained model in the run folder.

    outcome = train(run, mesh, device, stop=signals.asked, report=Report(run.train.steps))

It goes on where the run folder stands. What depends on a step's number is a function of it (schedule, data), so a run
that was stopped and continued is bit for bit the run that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import psutil
import torch

from data_pipeline.audit.positions import Point
from data_pipeline.rows.evaluation import EvaluationRows
from megaxf.config import Run, check_world
from megaxf.config_data import portion_at
from megaxf.config_errors import ConfigError
from megaxf.engine import Engine, StepResult, TorchBatch, create
from megaxf.engine.statistics import Statistics, by_number
from megaxf.parallel.clock import FORWARD
from megaxf.parallel.collectives import barrier
from megaxf.parallel.mesh import Mesh
from megaxf.plan.conventions import mfu
from megaxf.train import export, guards, writers
from megaxf.train.breakdown import CHECKPOINT, DATA, breakdown
from megaxf.train.checkpoints import Checkpoints
from megaxf.train.console import Report
from megaxf.train.environment import describe, idle_cores, start_line
from megaxf.train.evaluate import evaluate, validation_rows
from megaxf.train.feed import Feed
from megaxf.train.guards import Outcome, Requests
from megaxf.train.guards.documents import documents_of
from megaxf.train.guards.numbers import Finding, NumberGuard, explain, without
from megaxf.train.guards.replicas import compare_replicas
from megaxf.train.guards.stop import LAUNCHERS
from megaxf.train.guards.stragglers import Stragglers, explain_slow
from megaxf.train.initial import open_initial
from megaxf.train.lines import writing
from megaxf.train.lock import Lock
from megaxf.train.metrics import Recorder, TrainRecord, last_step
from megaxf.train.plots import plot_loss
from megaxf.train.positions import Positions
from megaxf.train.profile import Profiler
from megaxf.train.resolved import page, resolve
from megaxf.train.run_folder import RunFolder
from megaxf.train.schedules import rate_of
from megaxf.train.sources import check_files, epoch_warnings, open_run
from megaxf.train.start import Position, changes, is_done, load, look, same_on_all_ranks
from megaxf.train.throughput import Peak, find_peak, flops_per_token, hardware_flops_per_token
from megaxf.train.writers import open_writers

Beat = Callable[[int, str], None]
"""Takes a step and a phase."""


def train(
    run: Run,
    mesh: Mesh,
    device: torch.device,
    stop: Callable[[], bool],
    report: Report,
    *,
    launcher: str = "",
    must_resume: bool = False,
    allow_missing: bool = False,
    beat: Beat = lambda step, phase: None,
) -> Outcome:
    """Train until the last step, a stop or a divergence; collective.

    stop: asked once a step whether a signal asks this rank to end the run; one rank's wish is all ranks'.
    launcher: the program that has started the ranks.
    must_resume: a run folder without a checkpoint is an error.
    allow_missing: the checkpoint may be of another model: what it lacks begins anew, and each tensor of that is said.
    beat: is told where this rank is, a step and one of guards.watch.PHASES.
    Raises ConfigError, DataError and CheckpointError, the same on every rank, before the first step where possible.
    """
    check_world(run, mesh.world_size)
    folder = RunFolder(run.run_folder, run.checkpoint.folder)
    with Lock(folder.path, report.warn) as lock:
        standing = look(folder, run, mesh, must_resume, allow_missing, lock)
        if is_done(standing, run, mesh):
            report.say(f"{run.run_folder} stands at step {standing.step} of {run.train.steps}: nothing is left to do")
            return Outcome.DONE
        watched = folder.path if mesh.rank == 0 else None
        requests = Requests(stop, watched, run.train.exit_after_minutes, launcher in LAUNCHERS)
        guards.agreed(mesh, requests.refuse_start)
        lock.sign()
        numbers = NumberGuard(run, standing.passed_over, standing.skipped)
        run = without(run, numbers.skip_steps)
        for check in (export.check, writers.check):
            guards.agreed(mesh, lambda check=check: check(run))  # type: ignore[misc]
        batches, validation = guards.agreed(mesh, lambda: (open_run(run), validation_rows(run)))
        guards.agreed(mesh, lambda: check_files(batches) if mesh.rank == 0 else None)
        guards.agreed(mesh, lambda: epoch_warnings(run, batches))
        same_on_all_ranks(run, batches, mesh)
        new = standing.path is None
        initial = guards.agreed(mesh, lambda: open_initial(run, batches.tokenizer_folder())) if new else None
        engine = create(run, mesh, device)
        beat(standing.step, "load")
        position, origin = load(folder, run, engine, mesh, batches, report, numbers, allow_missing, initial)
        environment = describe(mesh, device, launcher, position.step)
        guards.agreed(mesh, lambda: folder.write_start(run, environment, lock, report.warn) if mesh.rank == 0 else None)
        if mesh.rank == 0:
            report.page(page(resolve(run, mesh.world_size, initial)))
        for sentence in [*changes(run, origin, position.step, allow_missing, mesh), *batches.limits()]:
            report.warn(sentence)
        peak = find_peak(run, mesh, device)
        report.say(f"{start_line(environment)}; MFU against {peak.flops / 1e12:.4g} TFLOP/s ({peak.origin})")
        if device.type == "cpu" and (advice := idle_cores(environment)):
            report.warn(advice)
        outcome = None
        while outcome is None:
            feed = Feed(batches, run, mesh, device, position.samples, position.step)
            trainer = Trainer(
                run, mesh, device, engine, feed, validation, folder, report, peak, position, requests, numbers, beat
            )
            try:
                outcome = trainer.run_to_end()
            finally:
                trainer.close()
            if outcome is None:
                run = without(run, numbers.skip_steps)
                batches = guards.agreed(mesh, lambda run=run: open_run(run))  # type: ignore[misc]
                position, _ = load(folder, run, engine, mesh, batches, report, numbers, allow_missing)
        # A launcher ends all ranks when the first leaves with a code that is not 0: rank 0 has drawn by now.
        barrier(mesh)
        return outcome


@dataclass
class Trainer:
    """One run in progress."""

    run: Run
    mesh: Mesh
    device: torch.device
    engine: Engine
    feed: Feed
    validation: dict[str, EvaluationRows]
    folder: RunFolder
    report: Report
    peak: Peak
    position: Position
    requests: Requests
    numbers: NumberGuard
    beat: Beat

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.run, self.mesh, self.folder, self.report.say, self.position.step)
        self.stragglers = Stragglers(self.run.guards, self.mesh)
        looks = self.run.metrics.statistics_every
        self.statistics = Statistics(self.engine, self.run, self.device) if looks else None
        self.profiler = Profiler(self.run.profile, self.mesh, self.device, self.folder.profile, self.report)
        self.skipped = 0
        self.parts: dict[str, float] = {}
        """Where the time of the last step went."""
        self.saving = 0.0
        """Seconds that a checkpoint has stopped the run for since the last step."""
        self.loss: float | None = None
        self.positions, self.recorder = guards.agreed(self.mesh, self._begin_records)

    def run_to_end(self) -> Outcome | None:
        """All remaining steps, with evaluations and checkpoints when they are due; collective.

        None: go on from the newest checkpoint, without the data that the guards have passed over.
        """
        seconds, clock = 0.0, self.mesh.clock
        if self.position.step == 0:
            self.evaluate()
        while self.position.step < self.run.train.steps:
            started = time.perf_counter()
            clock.clear()
            self.profiler.before(self.position.step + 1)
            self.beat(self.position.step + 1, "data")
            with clock.part(DATA):
                batch, fault = guards.attempt(self.feed.next)
            fault = fault or self._unwritten()
            flags = self.requests.stop(seconds, self.checkpoints.seconds), fault is not None, self.checkpoints.busy()
            stopping, failed, writing = guards.any_rank(self.mesh, self.device, *flags)
            if not writing:
                with clock.part(CHECKPOINT):
                    self.checkpoints.advance()
            if stopping or failed:
                self.save(last=True)
                guards.raise_first(self.mesh, fault or self._unwritten())
                why = self.requests.reason or "another rank was asked to"
                self.report.say(f"stopped after step {self.position.step} ({why}); the same command continues")
                return Outcome.STOPPED
            assert batch is not None
            self.beat(self.position.step + 1, "train" if seconds else "first step")
            finding = self.advance(batch, started)
            seconds = time.perf_counter() - started
            self.profiler.after(self.position.step)
            if finding and finding.ends:
                return None if finding.passed_over else Outcome.DIVERGED
            self.compare_speed()
            if self._replicas_are_due() and not self.replicas_are_alike():
                return Outcome.DIVERGED
            if self._due(self.run.evaluate.every):
                self.evaluate()
            if self._due(self.run.checkpoint.every):
                self.save(last=self.position.step == self.run.train.steps)
        guards.raise_first(self.mesh, self._unwritten())
        board = f"; tensorboard --logdir {self.folder.tensorboard}" if self.run.metrics.tensorboard else ""
        self.report.say(f"done: {self.position.step:,} steps, {self.position.tokens:,} tokens{board}")
        return Outcome.DONE

    def advance(self, batch: list[TorchBatch], started: float) -> Finding | None:
        """One optimizer step; gives what is wrong with it, on all ranks alike; collective."""
        step, samples, tokens = self.position
        rate = rate_of(self.run, step + 1)
        limit = self.numbers.limit(step + 1)
        if self.statistics and step % self.run.metrics.statistics_every == 0:
            result, groups = self.statistics.train_step(batch, rate, limit)
        else:
            result, groups = self.engine.train_step(batch, rate, limit), {}
        finding = self.numbers.judge(step + 1, result, self.checkpoints.newest, self.mesh, self.device)
        seconds = time.perf_counter() - started
        self.parts = self.mesh.clock.read()
        self.skipped += result.skipped or (finding is not None and finding.action == "skip")
        portion = portion_at(self.run, step + 1)
        self.position = Position(step + 1, self.feed.position, tokens + portion.tokens)
        speed = portion.tokens / seconds
        flops = flops_per_token(self.run, portion.sequence_length)
        again = hardware_flops_per_token(self.run, portion.sequence_length)
        self.loss = result.loss
        record = TrainRecord(
            step=step + 1,
            tokens=self.position.tokens,
            loss=result.loss,
            z_loss=result.z_loss,
            learning_rate=rate,
            gradient_norm=result.grad_norm,
            counted_tokens=result.tokens,
            seconds=seconds,
            tokens_per_second=speed,
            model_tflops=flops * speed / self.mesh.world_size / 1e12,
            mfu=mfu(flops, speed, self.mesh.world_size, self.peak.flops),
            hfu=mfu(again, speed, self.mesh.world_size, self.peak.flops),
            data_wait=self.parts[DATA] / seconds,
            memory_bytes=memory(self.device),
            idle_rows=result.idle_rows,
            skipped_steps=self.skipped,
            source_losses=self._source_losses(result),
            times=breakdown(self.parts, seconds, self.saving),
            groups=by_number(groups),
        )
        self.saving = 0.0
        if self.recorder:
            self.recorder.train(record)
        self.report.step(record)
        if finding:
            skipped = self.run.data.skip_steps
            self.report.warn(explain(finding, step + 1, result.loss, self.checkpoints.saved_step, skipped))
            if self.recorder:
                numbers = {"loss": result.loss, "gradient_norm": result.grad_norm}
                documents = documents_of(self.run, self.feed.batches, step + 1, samples)
                where = {"samples": [samples, self.position.samples - 1], "documents": documents}
                self.recorder.guard(step + 1, **finding._asdict(), **numbers, **where)
        elif result.skipped:
            self.report.warn(f"step {step + 1} is skipped: a gradient overflowed in fp16; the loss scale is lowered")
        return finding

    def compare_speed(self) -> None:
        """Name the ranks that are slow by themselves, when that is due; collective."""
        found = self.stragglers.look(self.parts[FORWARD] + self.parts[DATA])
        if found and found[1]:
            middle, slow = found
            self.report.warn(explain_slow(self.position.step, middle, slow))
            if self.recorder:
                named = [one._asdict() for one in slow]
                self.recorder.guard(self.position.step, found="stragglers", action="record", median=middle, slow=named)

    def replicas_are_alike(self) -> bool:
        """Compare the weights of data-parallel ranks; collective, and the same on all."""
        step, problem = self.position.step, compare_replicas(self.engine.replicated(), self.mesh, self.device)
        if problem is None:
            return True
        self.report.warn(
            f"after step {step}, {problem}. All ranks stop here and save nothing; the newest checkpoint is of step "
            f"{self.checkpoints.newest()}. The memory of such a rank may be faulty: start again on other hosts"
        )
        if self.recorder:
            self.recorder.guard(step, found="replicas", action="stop", why=problem)
        return False

    def evaluate(self) -> None:
        """The validation loss of each source; collective."""
        self.beat(self.position.step, "evaluate")
        for source, rows in self.validation.items():
            found = evaluate(self.engine, rows, source, self.run, self.mesh, self.device)
            if self.recorder:
                self.recorder.evaluation(self.position.step, self.position.tokens, found)
            self.report.evaluation(self.position.step, found)

    def save(self, last: bool) -> None:
        """A checkpoint of this step, unless there is one; complete on return where it is the last; collective."""
        started = time.perf_counter()
        step, samples, tokens = self.position
        self.beat(step, "save")
        if not self.checkpoints.begin(step, last):
            return
        if self.positions:
            self.positions.checkpoint(Point(step, samples))
        batches = self.feed.batches
        extra = {"samples": samples, "tokens": tokens, "data": batches.state(samples), "guards": self.numbers.state()}
        extra |= {"loss": self.loss}
        self.checkpoints.save(self.engine, step, (extra, batches.tokenizer_folder()), last)
        self.saving = time.perf_counter() - started

    def close(self) -> None:
        """End what runs beside the loop, and draw the curve; not collective, so it is safe after any error."""
        with ExitStack() as steps:  # each is done, whatever becomes of the others: the last one first
            if self.positions:
                steps.callback(self.positions.end, Point(self.position.step, self.position.samples))
            if self.recorder:
                steps.callback(self._draw)
                steps.callback(self.recorder.close)
            steps.callback(self.profiler.close)
            steps.callback(self.feed.close)

    def _draw(self) -> None:
        try:
            if plot_loss(self.folder.metrics, self.folder.plot, self.run.run_folder):
                self.report.say(f"loss curve: {self.folder.plot}")
        except OSError as error:
            self.report.warn(f"{self.folder.plot} is not drawn: {error}")

    def _begin_records(self) -> tuple[Positions | None, Recorder | None]:
        """On rank 0. Raises ConfigError where they cannot be written."""
        if self.mesh.rank != 0:
            return None, None
        with writing(self.folder.path):
            return self._record_start(), self._record()

    def _unwritten(self) -> ConfigError | None:
        """Why what the run records cannot be written any more, on rank 0."""
        return next((one.fault for one in (self.positions, self.recorder) if one and one.fault), None)

    def _record_start(self) -> Positions:
        """Before the recorder drops the records of steps that are lost, the last of which is noted."""
        positions, point = Positions(self.folder.positions), Point(self.position.step, self.position.samples)
        positions.start(
            point,
            self.feed.batches,
            data_ranks=self.mesh.data_size,
            global_batch_size=self.run.train.global_batch_size,
            reached=last_step(self.folder.metrics),
        )
        return positions

    def _record(self) -> Recorder:
        step, _, tokens = self.position
        opened = open_writers(self.run, self.folder, step, tokens, self.report.warn)
        return Recorder(self.folder.metrics, step, opened, self.report.warn)

    def _source_losses(self, result: StepResult) -> dict[str, float]:
        found = zip(sorted(self.run.data.sources), result.by_source, strict=False)
        return {source: nll / tokens for source, (nll, tokens) in found if tokens}

    def _replicas_are_due(self) -> bool:
        """Before every checkpoint, too: it would hold what one of them has."""
        every = self.run.guards.replica_check_every
        return bool(every) and (self._due(every) or self._due(self.run.checkpoint.every))

    def _due(self, every: int) -> bool:
        step = self.position.step
        return step == self.run.train.steps or bool(every and step % every == 0)


def memory(device: torch.device) -> int:
    """Bytes: the most that was allocated on the GPU, or what the process holds without one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)
