"""Generation batches of TRL's trainer that are written ahead (`covey.training.asynchronous`) or resampled.

Ahead: at the start of round r, all processes gather the weights of version r, which the main one keeps in a folder; the
main one has the prompts of round r + staleness written, waits for the completions of round r, and sends them to the
others. Collective operations are in the main thread only.

Resampled: completions are generated, rewarded, and their groups without signal replaced first; then TRL's own method
processes the final batch, so that only this one is counted and logged.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object
from trl.extras.profiling import profiling_context

from covey.config.vllm import SAMPLING_GPU
from covey.errors import ConfigError, CoveyError, DataError, EngineError
from covey.rollout import InferenceEngine
from covey.rollout.process.engine import ProcessEngine
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.training.advantages import ScoredRewards
from covey.training.asynchronous.pool import Group, Policy
from covey.training.asynchronous.rounds import FolderSnapshot, Rollouts, RoundPlan, rounds_in
from covey.training.asynchronous.schedule import Schedule, ScheduleWriter, digest_of_weights, recorded_settings
from covey.training.asynchronous.settings import Asynchronous
from covey.training.checkpoint.state import TrainingProgress
from covey.training.replaced import replaced
from covey.training.resampling import (
    FilledBatch,
    Resampler,
    SamplingRound,
    check_resampling,
    counts_in_loss,
    has_signal,
    make_round,
)
from covey.training.trl.generation import mixed_precision, named_weights, sampling_of, training_options, vocab_size
from covey.training.trl.tool_loop import loop_result

logger = logging.getLogger(__name__)

T = TypeVar("T")

Score = Callable[[list[dict[str, Any]]], Any]
"""TRL's own `_generate_and_score_completions`."""


class AsynchronousRounds:
    """The rounds of a trainer, written ahead.

    Args:
        trainer: Covey's `GRPOTrainer`, built.
        settings: what was asked for.
        engine: the user's own; None for Covey's own engine in a process of its own.
    """

    def __init__(self, trainer: Any, settings: Asynchronous, engine: InferenceEngine | None) -> None:
        self._trainer = trainer
        self._settings = settings
        self._engine = engine
        self._rollouts: Rollouts | None = None
        self._snapshot: tuple[int, FolderSnapshot | None] | None = None
        self._staleness: dict[str, float] = {}
        self._seconds = 0.0
        self.resumed_from: Path | None = None
        """The run directory of the checkpoint that training resumes from."""

    def begin(self, restored: TrainingProgress | None) -> None:
        """Training begins, or goes on from a checkpoint. The main process gets the engine ready. Raises a `CoveyError`
        if the trainer's settings, the data, the engine or the schedule rule it out."""
        self.close()
        _check_trainer(self._trainer)
        self._snapshot = None
        trainer, args = self._trainer, self._trainer.args
        asked, self._refusal = sampling_of(trainer)
        self._sampling = trainer.sampling.settings(asked)
        if restored is None and trainer.state.global_step:
            raise ConfigError(
                f"training.staleness={self._settings.staleness} cannot go on from a checkpoint of another program or "
                "another number of processes: which prompts were used is not known. Resume as the run was started, or "
                "with training.staleness=0."
            )
        sampler = trainer._train_sampler
        if not all(hasattr(sampler, name) for name in ("data_source", "shuffle", "seed", "batch_size")):
            raise ConfigError(
                f"training.staleness={self._settings.staleness} takes prompts ahead in the order of TRL's sampler, and "
                f"this trainer has another one, {type(sampler).__name__}: use TRL's sampler and data that have a "
                "length, or set training.staleness=0."
            )
        self._data, prompts, every = sampler.data_source, int(sampler.batch_size), trainer._generate_every
        if len(self._data) < prompts:
            raise ConfigError(f"A generation batch takes {prompts} prompts, and the data have {len(self._data)}.")
        self._rounds = rounds_in(
            trainer.state.max_steps,
            accumulation=args.gradient_accumulation_steps,
            generate_every=every,
            rounds_per_pass=len(self._data) // prompts,
        )
        due = -(-trainer._step // every)
        self._restored = self._usable(None if restored is None else restored.rollouts)
        self._from_main(lambda: self._make(prompts, due))
        # in every process: weights may be sharded
        digest = digest_of_weights(named_weights(trainer)) if due == 0 else None
        self._from_main(lambda: self._open_schedule(digest))

    def batch(self, inputs: list[dict[str, Any]], score: Score) -> dict[str, Any]:
        """The scored generation batch of the round that is due.

        Args:
            inputs: the rows of this process, from the data loader.
            score: scores them.

        Raises:
            CoveyError: the engine has failed, or the rows are not those whose completions were written.
        """
        trainer = self._trainer
        number = trainer._step // trainer._generate_every
        with profiling_context(trainer, "sync_weights"):
            snapshot = self._keep_weights(number)
            if trainer.args.use_vllm and self._engine is None:  # `use_vllm` itself is replaced meanwhile
                trainer.vllm_generation.expect(number)
        with profiling_context(trainer, "engine.generate"):
            groups = self._from_main(lambda: self._advance(number, snapshot))
        first = trainer.accelerator.process_index * len(inputs)
        rows = [(group, row) for group in groups for row in group.rows][first : first + len(inputs)]
        inputs = self._rows_of(inputs, [group for group, _ in rows], number)
        completions = [row.completion for _, row in rows]
        stale = [row.staleness(number) for group in groups for row in group.rows]
        oldest = [number - version for group in groups for row in group.rows for version, _ in row.versions]
        self._staleness = {names.STALENESS_MEAN: sum(stale) / len(stale), names.STALENESS_MAX: float(max(oldest))}
        self._log_staleness()
        trainer._log_completion_extra(names.COLUMN_VERSION, [row.versions[0][0] for _, row in rows])
        if self._settings.partial == "continue":
            trainer._log_completion_extra(names.COLUMN_VERSIONS, [[list(p) for p in row.versions] for _, row in rows])
        prompt_ids = [list(group.prompt) for group, _ in rows]
        turn = trainer.sampling.sampled(completions, self._sampling)
        ages = [[number - version for version, count in row.versions for _ in range(count)] for _, row in rows]
        trainer.sampling.newest = replace(trainer.sampling.newest, staleness=ages)
        with (
            replaced(
                trainer, _tokenize_prompts=lambda _: (prompt_ids, None, {}), _generate_single_turn=lambda *_, **__: turn
            ),
            trainer._early_rewards.batch_of(inputs),
        ):
            return dict(score(inputs))

    def end_step(self) -> None:
        """Log the time of the engine, and the staleness of completions that were generated for an earlier step."""
        metrics = self._trainer._metrics["train"]
        if self._rollouts is not None:
            metrics[names.ROLLOUT_TIME].append(self._rollouts.seconds_writing - self._seconds)
            self._seconds = self._rollouts.seconds_writing
        if self._staleness and not metrics[names.STALENESS_MAX]:  # a step without a round of its own
            self._log_staleness()

    def _log_staleness(self) -> None:
        metrics = self._trainer._metrics["train"]
        metrics[names.STALENESS_MEAN].append(self._staleness[names.STALENESS_MEAN])
        metrics[names.STALENESS_MAX][:] = [max([*metrics[names.STALENESS_MAX], self._staleness[names.STALENESS_MAX]])]

    def state(self) -> dict[str, Any] | None:
        """For a checkpoint, in the main process: what was written ahead. What is in flight is finished first."""
        if self._rollouts is None:
            return {"staleness": dict(self._staleness)}
        state = self._rollouts.settle()
        return {"rollouts": state, "made_for": self._made_for, "staleness": dict(self._staleness)}

    def close(self) -> None:
        """End the thread and its engine."""
        rollouts, self._rollouts = self._rollouts, None
        if rollouts is not None:
            rollouts.close()
            torch.set_num_threads(self._threads)
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _folder(self) -> Path:
        return RunDirectory(Path(self._trainer.args.output_dir)).rollouts

    @property
    def _ways(self) -> tuple[str, str]:
        return self._settings.order, self._settings.partial

    @property
    def _rows(self) -> int:
        """Completions of a round."""
        return int(self._trainer.args.generation_batch_size)

    @property
    def _made_for(self) -> list[Any]:
        """What the completions of a checkpoint must have been written for, to be used."""
        return [self._settings.staleness, *self._ways, self._rows, self._trainer.num_generations]

    def _usable(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """What a checkpoint holds, if it was written for these settings."""
        taken_turns = {names.STALENESS_MEAN: 0.0, names.STALENESS_MAX: 0.0}  # or nothing was generated yet
        self._staleness = dict((state or {}).get("staleness") or taken_turns)
        if state is None or "rollouts" not in state:
            return None
        if state["made_for"] == self._made_for:
            return state
        logger.warning(
            "The checkpoint holds completions that were written for other settings of training.staleness, async_order, "
            "async_partial or the batch: they are dropped, and those of their rounds are written anew."
        )
        return None

    def _make(self, prompts: int, due: int) -> None:
        """Start the engine, with what a checkpoint holds."""
        trainer, state, sampler = self._trainer, self._restored, self._trainer._train_sampler
        self._threads, self._seconds = torch.get_num_threads(), 0.0
        shutil.rmtree(self._folder, ignore_errors=True)
        replay = None if self._settings.schedule is None else Schedule.read(self._settings.schedule)
        queues = trainer.use_vllm and self._settings.partial == "continue"
        engine = self._engine or (self._server() if trainer.use_vllm else self._process())
        self._rollouts = Rollouts(
            engine,
            self._sampling,
            # a server has a queue of its own, and unfinished completions do not hold up the next call
            Policy(self._settings.staleness, prompts, *self._ways, rows_at_once=None if queues else self._rows),
            group_size=trainer.num_generations,
            seed=int(trainer.args.seed),
            replay=replay,
            vocab_size=vocab_size(trainer),
        )
        self._rollouts.next_round = due
        if state is not None:
            self._rollouts.restore(state["rollouts"])
        order = {"shuffle": sampler.shuffle, "seed": sampler.seed}
        self._plan = RoundPlan(len(self._data), prompts, first=self._rollouts.next_round, **order)

    def _server(self) -> InferenceEngine:
        """The vLLM server that TRL's client is connected to."""
        from covey.rollout.vllm.server_engine import ServerEngine  # its requests come with vLLM

        trainer = self._trainer
        generation = trainer.vllm_generation
        return ServerEngine(
            generation.vllm_client,
            vocab_size=vocab_size(trainer),
            seed=int(trainer.args.seed),
            synced=generation.check_version,
        )

    def _process(self) -> ProcessEngine:
        """Covey's own engine in another process, which gets some of this one's threads on a CPU. Raises a `ConfigError`
        if TRL's settings ask for what it cannot do."""
        trainer, device = self._trainer, self._trainer.accelerator.device
        if self._refusal is not None:
            raise ConfigError(
                f"{self._refusal}, and with training.staleness={self._settings.staleness} completions are sampled by "
                "Covey: leave it out, or set training.staleness=0."
            )
        if device.type == "cuda" and SAMPLING_GPU in os.environ:  # else it shares the trainer's
            device = torch.device("cuda", 0)
        with training_options(trainer):  # the process gets a copy of them
            engine = ProcessEngine(
                trainer.accelerator.unwrap_model(trainer.model),
                trainer._tokenizer,
                device=device,
                folder=self._folder,
                seed=int(trainer.args.seed),
                shared_prefill=trainer._speed.shared_prefill,
                autocast=mixed_precision(trainer),
            )
        if device.type == "cpu":
            torch.set_num_threads(max(1, self._threads - engine.threads))
        return engine

    def _open_schedule(self, digest: str | None) -> None:
        """Begin or go on with the run's own schedule, and check the one that is replayed; `digest` is of the weights
        before the first step."""
        trainer, rollouts, state = self._trainer, self._rollouts, self._restored
        assert rollouts is not None
        settings = recorded_settings(
            trainer.args,
            rollouts.policy,
            self._sampling,
            rollouts.engine,
            weights=digest,
            processes=trainer.accelerator.num_processes,
            device=trainer.accelerator.device.type,
            threads=torch.get_num_threads(),
            rows_of_data=len(self._data),
        )
        if rollouts.replay is not None:
            rollouts.replay.check(settings)
        path = RunDirectory(Path(trainer.args.output_dir)).schedule
        keep = 0 if state is None else int(state["rollouts"]["schedule"])
        source = None if self.resumed_from is None else RunDirectory(self.resumed_from).schedule
        rollouts.schedule = ScheduleWriter(path, settings, keep=keep, copy=source)

    def _keep_weights(self, number: int) -> FolderSnapshot | None:
        """The weights of this round, in the main process; those of the last round if no step was made since."""
        trainer = self._trainer
        step = int(trainer.state.global_step)
        if self._snapshot is None or self._snapshot[0] != step:
            weights, kept = named_weights(trainer), None
            if trainer.accelerator.is_main_process:
                kept = FolderSnapshot(self._folder / f"version-{number:06d}", weights)
            for _ in weights:  # gathering sharded weights needs all processes
                pass
            self._snapshot = step, kept
        return self._snapshot[1]

    def _advance(self, number: int, snapshot: FolderSnapshot | None) -> list[Group]:
        """Publish the weights, have further rounds written, and wait for this one; in the main process."""
        rollouts = self._rollouts
        assert rollouts is not None
        assert snapshot is not None
        rollouts.publish(number, snapshot)
        last = min(number + self._settings.staleness, self._rounds - 1)
        while rollouts.next_round <= max(last, number):
            rows = self._plan.take()
            prompts = [self._data[row]["prompt"] for row in rows]
            ids, images, fields = self._trainer._tokenize_prompts(prompts)
            if images is not None or fields:
                raise DataError(
                    f"training.staleness={self._settings.staleness} takes prompts that are tokens only, and these hold "
                    f"{'images' if images is not None else ', '.join(fields)} as well: set training.staleness=0."
                )
            rollouts.submit(rollouts.next_round, ids, rows=rows)
        return rollouts.take(number)

    def _from_main(self, make: Callable[[], T]) -> T:
        """What the main process makes, in all processes; its error is raised in all."""
        accelerator = self._trainer.accelerator
        if accelerator.num_processes == 1:
            return make()
        found: list[Any] = [None, None]
        error: CoveyError | None = None
        if accelerator.is_main_process:
            try:
                found = [make(), None]
            except CoveyError as raised:
                error, found = raised, [None, str(raised)]
        broadcast_object_list(found, from_process=0)
        if found[1] is not None:
            raise error or EngineError(found[1])
        made: T = found[0]
        return made

    def _rows_of(self, inputs: list[dict[str, Any]], groups: list[Group], number: int) -> list[dict[str, Any]]:
        """The data rows of these completions: those that are due, or with `arrival` those that were done."""
        if self._settings.order == "arrival":
            return [dict(self._data[group.index]) for group in groups]
        known: dict[int, Any] = {}
        for row, group in zip(inputs, groups, strict=True):
            if group.index not in known:
                known[group.index] = self._data[group.index]["prompt"]
            if row["prompt"] != known[group.index]:
                raise DataError(
                    f"The prompts of round {number} are not those whose completions were written ahead: the data or "
                    "their order have changed during the run. Resume from a checkpoint, with the same data."
                )
        return inputs


def _check_trainer(trainer: Any) -> None:
    """Raise a `ConfigError` for what cannot be combined and only a built trainer shows."""
    refused = {
        "a model that reads images": trainer._is_vlm,
        "tools or environments": bool(trainer.tools) or trainer.environment_factories is not None,
        "rollout_func": trainer.rollout_func is not None,
        "resample_groups": trainer._resampler is not None,
        "use_transformers_continuous_batching=True": trainer.use_transformers_continuous_batching,
        "vllm_mode=colocate": trainer.use_vllm and trainer.vllm_mode != "server",
        "vllm_importance_sampling_correction=False": not trainer.vllm_importance_sampling_correction,
    }
    if found := [name for name, used in refused.items() if used]:
        raise ConfigError(f"Asynchronous training cannot be combined with {' and '.join(found)}: leave that out.")


def make_resampler(trainer: Any, max_prompts: int) -> Resampler:
    """The resampler of a trainer, with at most `max_prompts` further prompts per generation batch. Raises a
    `ConfigError` if the data or the way of generating cannot be combined with it."""
    images = bool(trainer.tools) and trainer._is_vlm
    check_resampling(
        trainer.train_dataset, {"rollout_func": trainer.rollout_func, "tools of a model that reads images": images}
    )
    return Resampler(
        max_prompts,
        num_generations=trainer.num_generations,
        processes=trainer.accelerator.num_processes,
        process_index=trainer.accelerator.process_index,
        gather_object=gather_object,
    )


def resampled_batch(trainer: Any, resampler: Resampler, rows: int, score: Score) -> dict[str, Any]:
    """The scored generation batch of a step, with `rows` rows in this process; `score` is TRL's own
    `_generate_and_score_completions`."""
    seen_before = trainer.state.num_input_tokens_seen
    filled = resampler.fill(rows, lambda drawn: _generate(trainer, drawn, score))
    seen, trainer.state.num_input_tokens_seen = trainer.state.num_input_tokens_seen, seen_before
    trainer.sampling.newest = replace(trainer.sampling.newest, supports=[sample.support for sample in filled.samples])
    trainer._rewards_BF = filled.rewards
    trainer._pending_extra_logs.update(filled.extra)
    trainer._pending_metrics.update(filled.reported)
    with replaced(trainer, **_generated(filled), _calculate_rewards=lambda *_: filled.rewards):
        output: dict[str, Any] = score(filled.rows)
    trainer._episodes.log_metrics(filled.episodes)
    wasted = seen - trainer.state.num_input_tokens_seen
    trainer.state.num_input_tokens_seen = seen
    trainer._metrics["train"]["num_tokens"] = [seen]
    for name, value in {**filled.metrics, "resampling/tokens": float(wasted)}.items():
        trainer._metrics["train"][name].append(value)
    return output


def _generated(filled: FilledBatch) -> dict[str, Any]:
    """What replaces the parts of TRL's generation by the completions that there are, by their names in the trainer."""
    parts: dict[str, Any] = {"_generate_single_turn": lambda *_, **__: filled.completions}
    if episodes := filled.episodes:
        prompt_ids = [episode.prompt_ids for episode in episodes]
        parts |= {
            "_tokenize_prompts": lambda _: (prompt_ids, None, {}),
            "_tool_call_loop": lambda *_: loop_result(episodes),
            # these episodes are over, so no environment is to be reset
            "environment_factories": None,
            "environments": None,
        }
    return parts


class _Prompts(BaseException):
    """No error: leaves TRL's method with the prompts that it was about to generate from."""

    def __init__(self, prompts: list[Any]) -> None:
        self.prompts = prompts


def _prepared(trainer: Any, rows: list[dict[str, Any]], score: Score) -> list[Any]:
    """The prompts of these rows, as TRL makes them: with environments that are reset, and what they say."""

    def leave(prompts: list[Any]) -> None:
        raise _Prompts(prompts)

    try:
        with replaced(trainer, _generate=leave):
            score(rows)
    except _Prompts as left:
        return left.prompts
    raise AssertionError("TRL generates by _generate")


def _generate(trainer: Any, rows: list[dict[str, Any]], score: Score) -> SamplingRound:
    """Generate and reward completions of these rows, without adding to the metrics of the step."""
    kept, trainer._metrics["train"] = trainer._metrics["train"], defaultdict(list)
    rows = trainer._episodes.begin(rows)
    prompts = _prepared(trainer, rows, score) if trainer._episodes.used else [row["prompt"] for row in rows]
    with trainer._early_rewards.batch_of(rows):
        _, ids, _, completions, logps, *_ = trainer._generate(prompts)
        rewards_BF = trainer._calculate_rewards(rows, prompts, completions, ids)
    trainer._metrics["train"] = kept
    extra, reported = dict(trainer._pending_extra_logs), dict(trainer._pending_metrics)
    trainer._pending_extra_logs.clear()
    trainer._pending_metrics.clear()
    eos_token_ids = (
        {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id} if trainer.mask_truncated_completions else None
    )
    counts_B = trainer.accelerator.gather(counts_in_loss(ids, eos_token_ids).to(rewards_BF.device))
    rewards = ScoredRewards.of(trainer, rewards_BF)
    keeps = getattr(trainer._objective, "keeps_trl_advantages", trainer._objective is None)
    signal_P = has_signal(rewards if keeps else rewards.only(counts_B), counts_B)
    logged = {"extra": extra, "reported": reported}
    episodes, supports = trainer._episodes.newest, trainer.sampling.newest.supports
    return make_round(rows, ids, logps, rewards_BF, signal_P, **logged, episodes=episodes, supports=supports)
