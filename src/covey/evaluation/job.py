"""`covey eval`: a model, a run or a checkpoint on held-out problems or benchmarks, stored so that it can be resumed.

What imports PyTorch is imported in functions, after the problems have been read and their columns checked.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey import data
from covey.answers import Outcome, Tags
from covey.config import Config, DatasetConfig
from covey.data.holdout import shuffled
from covey.environments.runner import environment_rewards, running
from covey.errors import ConfigError, RunDirectoryError
from covey.evaluation.grading import (
    SEED_OFFSET,
    GradedCompletion,
    HeldOutGrader,
    answer_asked_by,
    check_columns_for,
    check_evaluation,
    grader_name,
)
from covey.evaluation.metrics import compute_metrics
from covey.evaluation.stored import Target, describe_data, describe_method, prompts_of, weights_fingerprint
from covey.model.load import load_tokenizer, vocab_size_of
from covey.model.prompts import cut_left, prompt_lengths, thinking_prefix
from covey.model.reward_model import reward_models
from covey.rewards.runner import RewardRunner
from covey.runlog.directory import describe_environment
from covey.runlog.evaluations import (
    StoredEvaluation,
    append_completions,
    begin_evaluation,
    extend_evaluation,
    finish_evaluation,
    read_evaluation,
    writing_evaluation,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from covey.evaluation.play import Players
    from covey.rollout import InferenceEngine, SamplingSettings

logger = logging.getLogger(__name__)

_SYSTEM_PROMPT = (
    "Solve the problem step by step. Put your reasoning between <think> and </think>, and then only the final answer, "
    "in its simplest exact form, between <answer> and </answer>."
)


def _benchmark(id: str, prompt: str, answer: str, split: str, **more: str) -> DatasetConfig:
    return DatasetConfig(
        id=id,
        prompt_column=prompt,
        answer_column=answer,
        train_split=split,
        test_split=None,
        test_size=0,
        system_prompt=_SYSTEM_PROMPT,
        **more,  # type: ignore[arg-type]
    )


BENCHMARKS: Mapping[str, DatasetConfig] = {
    "gsm8k": _benchmark("openai/gsm8k", "question", "answer", "test", config="main", answer_extractor="gsm8k"),
    "math500": _benchmark("HuggingFaceH4/MATH-500", "problem", "answer", "test"),
    "aime24": _benchmark("HuggingFaceH4/aime_2024", "problem", "answer", "train"),
    "amc23": _benchmark("math-ai/amc23", "question", "answer", "test"),
    "minerva": _benchmark("math-ai/minervamath", "question", "answer", "test"),
    "olympiadbench": _benchmark("knoveleng/OlympiadBench", "question", "answer", "train"),
}
"""Each is read as a training split without held-out rows, so that it is complete and in its own order."""

_OTHER_NAMES = {"aime2024": "aime24", "amc2023": "amc23", "minervamath": "minerva"}


def named(name: str) -> str:
    """The canonical name of a benchmark with aliases such as `math_500`, `MATH-500` or `aime_2024`."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    plain = _OTHER_NAMES.get(plain, plain)
    return plain if plain in BENCHMARKS else name


def check_benchmarks(names: Iterable[str], key: str) -> None:
    """Raise a `ConfigError` unless all these benchmarks are known."""
    for name in names:
        if named(name) not in BENCHMARKS:
            near = difflib.get_close_matches(name, BENCHMARKS, n=1)
            guess = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{key}: there is no benchmark {name}; there are {', '.join(BENCHMARKS)}.{guess}")


def benchmark(name: str, path: str | None, own: DatasetConfig) -> DatasetConfig:
    """The dataset of a benchmark.

    Args:
        name: see `BENCHMARKS`.
        path: a local file in place of the hub.
        own: the run's own dataset; its system prompt and user prompt template, if set, replace the defaults.

    Raises:
        ConfigError: there is no such benchmark.
    """
    check_benchmarks([name], "evaluation.benchmarks")
    found = BENCHMARKS[named(name)]
    if path is not None:  # a single file has one split, whatever the hub calls it
        found = replace(found, path=str(Path(path).expanduser()), train_split="train")
    prompts = {"system_prompt": own.system_prompt, "user_prompt_template": own.user_prompt_template}
    return replace(found, **{key: value for key, value in prompts.items() if value is not None})  # type: ignore[arg-type]


Progress = Callable[[str, int, int], None]
"""Called with the name of the set, the completions done, and completions in all."""

_PRESETS = {(0.7, 50, 0.95): "standard", (0.85, 2000, 1.0): "liberal", (1.0, 0, 1.0): "sampled"}


@dataclass(frozen=True, slots=True)
class _Set:
    """Problems that are evaluated together."""

    name: str
    rows: Dataset
    grader: str | None
    rewarded: bool
    """Whether the run's rewards are computed; not on benchmarks."""
    benchmark: bool = False


@dataclass(slots=True)
class Selection:
    """What is evaluated in place of the held-out sets."""

    split: str
    """`all` rows of a file in their order; or `train` or one held-out set, in an order drawn from the seed."""
    sampling: SamplingSettings | None = None
    """None takes that of the config."""
    loaded: data.LoadedData = field(init=False)
    """The rows, once they are read, as those to train on and as the only held-out set."""


def run_evaluations(
    config: Config,
    target: Target,
    paths: Mapping[str, str],
    out: Path | None,
    progress: Progress,
    model: Any = None,
    *,
    selection: Selection | None = None,
    overwrite: bool = False,
) -> list[StoredEvaluation]:
    """Evaluate on the benchmarks that the config names, or else on the held-out sets of its data.

    Args:
        config: `model.name` is `target.source`; `evaluation.*` holds the sampling settings.
        target: what is evaluated, and where its results go.
        paths: local files of benchmarks by name.
        out: the folder for the results, in place of the default; with one folder per set if there are several.
        progress: see `Progress`.
        model: the target's model, if it is loaded already.
        selection: what is evaluated in place of the held-out sets.
        overwrite: replace results of other settings, which are else refused. Those on the first of the problems are
            extended.

    Raises:
        CoveyError: the model, the data or the settings cannot be used, or the folder holds other results.
    """
    with running(config.environment) as environments:
        rewarding = () if environments is None else environment_rewards(config, environments)
        check_evaluation(config, rewarding)
        sets, tokenizer = _sets(config, paths, rewarding, selection)
        from covey.evaluation.play import Players
        from covey.evaluation.run import engine_of, sampling_of

        name = "local" if model is not None else config.evaluation.engine
        engine = engine_of(config, target, tokenizer, name, model)
        sampling = (selection and selection.sampling) or sampling_of(config)
        longest, models = config.training.max_completion_length, reward_models(config.rewards)
        runner = RewardRunner.of(config.rewards, max_completion_length=longest, models=models)
        with closing(engine), runner:
            runner.start()
            players = Players.of(config, environments, tokenizer, getattr(engine, "model", None))
            found = []
            for part in sets:
                folder = _folder(config, target, part.name, out, several=len(sets) > 1)
                with players.for_set(part.name, part.rows.column_names, benchmark=part.benchmark) as on_set:
                    setup = _Setup(engine, name, tokenizer, runner, on_set, sampling)
                    found.append(_evaluate_set(config, target, part, folder, setup, progress, overwrite))
        return found


def load_benchmark(name: str, config: Config, paths: Mapping[str, str] | None = None) -> Dataset:
    """The problems of a benchmark, at most `evaluation.max_problems` of them.

    Args:
        name: see `BENCHMARKS`.
        config: has its path and its prompts.
        paths: local files by name, over those of the config.

    Raises:
        ConfigError: there is no such benchmark.
        DataError: it cannot be loaded.
    """
    files = {named(key): path for key, path in {**config.evaluation.benchmark_paths, **(paths or {})}.items()}
    chosen = benchmark(name, files.get(named(name)), config.dataset)
    rows = data.load(chosen, config.seed, benchmark=named(name)).train
    return rows.select(range(min(config.evaluation.max_problems or len(rows), len(rows))))


def _sets(
    config: Config, paths: Mapping[str, str], rewarding: Sequence[str], selection: Selection | None
) -> tuple[list[_Set], Any]:
    """The sets of rows that are evaluated, and the tokenizer, which is loaded after the columns have been checked."""
    if names := config.evaluation.benchmarks:
        loaded = [(name, load_benchmark(name, config, paths)) for name in names]
        sets = [_Set(name, rows, "accuracy", rewarded=False, benchmark=True) for name, rows in loaded]
        return sets, load_tokenizer(config.model)
    found = _held_out(config, selection.split if selection else None)
    columns = {name: rows.column_names for name, rows in found.evaluation.items()}
    left_out = check_columns_for(config, columns, rewarding)
    for note in left_out.values():
        logger.warning("%s", note)
    tokenizer = load_tokenizer(config.model)
    if selection is None or selection.split != "all":
        length = prompt_lengths(tokenizer, config.training.chat_template_kwargs)
        own = found if selection is None else replace(found, evaluation={})  # the same rows, under another name
        kept = data.filter_by_length(own, length, cut_left(tokenizer), config.dataset)
        found = kept if selection is None else replace(kept, evaluation={selection.split: kept.train})
    if selection is not None:
        selection.loaded = found
    most, grader = config.evaluation.max_problems, grader_name(config)
    return [
        _Set(name, rows.select(range(min(most or len(rows), len(rows)))), grader, rewarded=name not in left_out)
        for name, rows in found.evaluation.items()
    ], tokenizer


def _held_out(config: Config, split: str | None) -> data.LoadedData:
    """The data of a config, with the rows to evaluate on as its held-out sets; with those of a `Selection.split` as
    all that there is."""
    settings = config.dataset
    if split == "all" and not (settings.path or settings.id):
        raise ConfigError(
            "--all takes every row of a file or a hub dataset (dataset.path, dataset.id), and this data is "
            f"{config.dataset.label}. Leave --all out, or name one: dataset=gsm8k dataset.path=FILE."
        )
    if split == "all":
        settings = replace(settings, test_split=None, test_path=None, test_fraction=None, test_size=0)
    loaded = data.load(settings, config.seed, answer_for=answer_asked_by(config), environment=config.environment)
    if split is None and not loaded.evaluation:
        raise ConfigError(
            "There are no held-out problems to evaluate on: dataset.test_size=0. Set it above 0, or "
            "take every row of a file with --all."
        )
    if split is None:
        return loaded
    sets = {"all" if split == "all" else "train": loaded.train, **loaded.evaluation}
    if split not in sets:
        raise ConfigError(f"profile.split={split} is not there: this data has the rows {', '.join(sets)}.")
    order = range(len(sets[split])) if split == "all" else shuffled(len(sets[split]), config.seed)
    source = loaded.source.select(order) if loaded.source and split == "train" else None
    return replace(loaded, train=(rows := sets[split].select(order)), evaluation={split: rows}, source=source)


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a set is evaluated with."""

    engine: InferenceEngine
    engine_name: str
    tokenizer: Any
    runner: RewardRunner
    players: Players
    sampling: SamplingSettings


def _evaluate_set(
    config: Config, target: Target, part: _Set, folder: Path, setup: _Setup, progress: Progress, overwrite: bool
) -> StoredEvaluation:
    from transformers import TrainerState

    from covey.evaluation.run import evaluate, whole_batches

    settings, tags = config.evaluation, Tags(config.rewards.think_tag, config.rewards.answer_tag)
    template = config.training.chat_template_kwargs
    described: dict[str, Any] = {
        "name": part.name,
        "model": {"id": target.label, "fingerprint": weights_fingerprint(target, getattr(setup.engine, "model", None))},
        "data": describe_data(config, setup.players.environment, part.rows, setup.tokenizer),
        **describe_method(
            config,
            setup.players.environment,
            part.grader,
            setup.engine_name,
            rewarded=part.rewarded,
            rewarding=bool(setup.players.rewarding),
        ),
        "environment": describe_environment(),
    }

    def on_first(count: int) -> dict[str, Any]:
        first = part.rows.select(range(count))
        return described | {"data": describe_data(config, setup.players.environment, first, setup.tokenizer)}

    total = len(part.rows) * settings.num_samples
    with writing_evaluation(folder):
        extend_evaluation(folder, described, on_first, lambda done: done // settings.batch_size * settings.batch_size)
        before = _restored(folder, begin_evaluation(folder, described, overwrite=overwrite))
        store = _Store(folder, len(before), whole_batches(len(before), total, settings.batch_size))
        progress(part.name, store.reached, total)
        result = evaluate(
            setup.engine,
            setup.tokenizer,
            part.rows,
            setup.sampling,
            num_samples=settings.num_samples,
            batch_size=settings.batch_size,
            seed=described["seed"],
            start=config.dataset.seed + SEED_OFFSET,
            grade=HeldOutGrader(config, setup.runner, part.grader, part.rewarded, TrainerState()),
            tags=tags,
            prompt_prefix=thinking_prefix(setup.tokenizer, prompts_of(part.rows)[0], tags.think, template),
            on_progress=lambda count, of: progress(part.name, count, of),
            on_batch=store.add,
            done=before,
            chat_template_kwargs=template,
            vocab_size=None if setup.engine_name == "local" else vocab_size_of(config.model),
            playing=setup.players.playing(),
        )
        records = [item.record() for item in result.completions]
        estimates = compute_metrics(records, config.seed, settings.k, part.grader)
        finish_evaluation(folder, {name: (e.value, e.low, e.high) for name, e in estimates.items()})
    return read_evaluation(folder)


@dataclass(slots=True)
class _Store:
    """Appends graded batches to the completions on disk."""

    folder: Path
    written: int
    """Completions on disk."""
    reached: int
    """Completions before the next batch; below `written` while an incomplete batch is sampled again."""

    def add(self, batch: Sequence[GradedCompletion]) -> None:
        again = max(0, self.written - self.reached)
        append_completions(self.folder, [item.record() for item in batch[again:]])
        self.reached += len(batch)
        self.written = max(self.written, self.reached)


def _restored(folder: Path, completions: Iterable[Mapping[str, Any]]) -> list[GradedCompletion]:
    try:
        return [
            GradedCompletion(**{**item, "outcome": None if item["outcome"] is None else Outcome(item["outcome"])})
            for item in completions
        ]
    except (TypeError, KeyError, ValueError) as error:
        raise RunDirectoryError(
            f"{folder} holds a completion that `covey eval` did not write ({error}), so it cannot be resumed. "
            "Delete that folder and evaluate again, or give another one with --out."
        ) from None


def _folder(config: Config, target: Target, name: str, out: Path | None, *, several: bool) -> Path:
    settings = config.evaluation
    key = (settings.temperature, settings.top_k, settings.top_p)
    how = "greedy" if settings.temperature == 0 else _PRESETS.get(key, f"t{key[0]:g}-k{key[1]}-p{key[2]:g}")
    samples = f"-x{settings.num_samples}" if settings.num_samples > 1 else ""
    if out is not None:
        return out / name if several else out
    if target.run is not None:
        return target.run / "evaluation" / f"{name}-{target.state}-{how}{samples}"
    data_name = name if config.evaluation.benchmarks else f"{config.dataset.label}-{name}"
    model_name = target.label.rstrip("/").rpartition("/")[2]
    return Path(config.output_dir) / "evaluations" / f"{model_name}-{data_name}-{how}{samples}".replace("/", "_")
