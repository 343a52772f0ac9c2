"""Evaluations on disk, of `covey eval` and of training, what identifies them, and what a user may name for one.

Training writes the completions only, as `evaluation/<set>-step-<N>.jsonl`. The sampling settings are in the config of
the run, and the metrics are computed again.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.advice import command
from covey.answers import Outcome
from covey.config import Config, Flag, load
from covey.config.compose.recipe import read_yaml, script_of
from covey.config.groups.environment import EnvironmentConfig
from covey.config.secrets import without_secrets
from covey.errors import ConfigError, ModelError, RunDirectoryError
from covey.evaluation.grading import SEED_OFFSET, grader_name, grader_settings
from covey.evaluation.metrics import compute_metrics
from covey.evaluation.played import row_columns
from covey.importing import code_hashes
from covey.model.prompts import render
from covey.rewards.reward import last_user_message
from covey.runlog import names
from covey.runlog.checkpoint import is_complete
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import (
    StoredEvaluation,
    list_evaluations,
    read_completions,
    read_evaluation,
    training_file_names,
    training_files,
)
from covey.runlog.notes import has_failed

if TYPE_CHECKING:
    from datasets import Dataset


def evaluations_of(run_dir: Path) -> list[StoredEvaluation]:
    """All complete evaluations of a run: those of training by step, then those of `covey eval`, oldest first. Raises a
    `RunDirectoryError` if one of them cannot be read."""
    RunDirectory(run_dir).refuse_newer()
    of_training = [read_training_evaluation(file) for _, _, file in training_files(run_dir)]
    return [*of_training, *list_evaluations(run_dir)]


def read_stored(path: Path) -> StoredEvaluation:
    """The evaluation of `covey eval` in this folder, or of training in this file. Raises a `RunDirectoryError` if it is
    not one, is damaged, or not finished."""
    if path.suffix == ".jsonl":
        return read_training_evaluation(path)
    found = read_evaluation(path)
    if not found.done:
        raise RunDirectoryError(f"{path} is not finished: the same `covey eval` command resumes it.")
    return found


def read_training_evaluation(file: Path) -> StoredEvaluation:
    """An evaluation of training. Raises a `RunDirectoryError` if it is not one, it is damaged, or the run's config is
    missing."""
    named = training_file_names(file)
    run = RunDirectory(file.absolute().parent.parent)
    if named is None or not file.is_file() or not run.config.is_file():
        raise RunDirectoryError(
            f"{file} is not an evaluation of a training run, which is <run>/evaluation/<set>-step-<N>.jsonl in a "
            "run directory with a config.yaml."
        )
    run.refuse_newer()
    completions = list(read_completions(file))
    config = load(recipe=run.config)
    graded = any(item.get("outcome") is not None for item in completions)
    grader = (grader_name(config) or "accuracy") if graded else None  # older versions graded every run
    try:
        estimates = compute_metrics(completions, config.seed, config.evaluation.k, grader)
        problems = problems_of(completions)
    except KeyError as missing:
        raise RunDirectoryError(
            f"{file} holds completions without {missing}: the file was changed. Delete it."
        ) from None
    except (AttributeError, TypeError, ValueError):
        raise RunDirectoryError(
            f"{file} holds completions with values of other types than Covey writes: the file was changed. Delete it."
        ) from None
    rewarding = any(item.get(names.SCORE) is not None for item in completions)
    measured = settings_of(config, grader, rewarding=rewarding)
    rows = {item["problem"]: item["row"] for item in completions if "row" in item}
    seed = environment_seed(config.dataset.seed, config.environment)
    fingerprint = problems_digest(problems, [rows[problem] for problem in sorted(rows)], seed)
    data = {"problems": len(problems), "problems_fingerprint": fingerprint, **measured["data"]}
    model = {"id": f"{run.root.name} at step {named[1]}"}
    settings = {**measured, "code": run.code_hashes(), "name": named[0], "step": named[1], "model": model, "data": data}
    summary = {name: {"value": e.value, "low": e.low, "high": e.high} for name, e in estimates.items()}
    return StoredEvaluation(file, settings, summary)


def problems_of(completions: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The question (the last user message) and the answer of every problem, in order."""
    found = {item["problem"]: (str(item["prompt"]), str(item["answer"])) for item in completions}
    return [found[problem] for problem in sorted(found)]


def digest(items: Iterable[Any]) -> str:
    """A hash of the items in their order; equal for lists and tuples."""
    found = hashlib.sha256()
    for item in items:
        found.update(json.dumps(item, ensure_ascii=True).encode() + b"\n")
    return found.hexdigest()


def problems_digest(
    problems: Iterable[tuple[str, str]], rows: Iterable[Mapping[str, Any]] = (), seed: int | None = None
) -> str:
    """A hash of the problems.

    Args:
        problems: question and answer of each.
        rows: of episodes, the other columns of each problem's row, which environments get.
        seed: see `environment_seed`.
    """
    return digest([*problems, *rows, *([] if seed is None else [("seed", seed)])])


def environment_seed(seed: int, environment: EnvironmentConfig) -> int | None:
    """The seed from which each problem's environment starts; None without one, as tools have no start."""
    return None if environment.factory is None else seed


def settings_of(config: Config, grader: str | None, *, rewarding: bool = False) -> dict[str, Any]:
    """How a run with this config measures held-out problems, as far as its config knows it, as in `settings.json`.

    Args:
        grader: of its evaluations.
        rewarding: see `grader_settings`.
    """
    return {
        "seed": config.seed + SEED_OFFSET,
        "data": {
            "seed": config.dataset.seed,
            "system_prompt": config.dataset.system_prompt,
            "chat_template_kwargs": dict(config.training.chat_template_kwargs or {}),
            "chat_template": config.model.chat_template,
        },
        "sampling": sampling_settings(config),
        "num_samples": config.evaluation.num_samples,
        **grader_settings(config, grader, rewarding=rewarding),
        **reward_settings(config),
        **episode_settings(config.environment),
    }


def reward_settings(config: Config) -> dict[str, Any]:
    """The reward functions of evaluations with this config, as in `settings.json`."""
    return {"rewards": {"funcs": list(config.rewards.funcs), "weights": list(config.training.reward_weights or ())}}


def episode_settings(settings: EnvironmentConfig) -> dict[str, Any]:
    """The environments and tools of an evaluation, as in `settings.json`; empty without any."""
    if not settings.used:
        return {}
    environments = [
        {"name": name, "factory": factory, "settings": without_secrets(own)}
        for name, (factory, own) in settings.factories.items()
    ]
    return {"episodes": {"environments": environments, "tools": list(settings.tools), "max_turns": settings.max_turns}}


def sampling_settings(config: Config) -> dict[str, Any]:
    """The sampling settings of evaluations with this config, as in `settings.json`."""
    settings = config.evaluation
    return {
        "max_completion_length": settings.max_completion_length or config.training.max_completion_length or 256,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
    }


_BLOCK = 1 << 20


def prompts_of(rows: Dataset) -> list[Any]:
    """The prompts of the rows; of rows without any, whose environment makes them, the empty one that it adds to."""
    if "prompt" in rows.column_names:
        return list(rows["prompt"])
    return [[{"role": "user", "content": ""}]] * len(rows)


def describe_data(config: Config, environment: EnvironmentConfig, rows: Dataset, tokenizer: Any) -> dict[str, Any]:
    """The problems, and how they are put to the model; arguments as of `describe_method`."""
    template = config.training.chat_template_kwargs or {}
    prompts = prompts_of(rows)
    answers = rows["answer"] if "answer" in rows.column_names else [None] * len(rows)
    problems = list(zip(map(last_user_message, prompts), map(str, answers), strict=True))
    others = map(row_columns, rows) if environment.used else ()
    messages = [] if isinstance(prompts[0], str) else prompts[0]
    return {
        "problems": len(rows),
        "seed": config.dataset.seed,
        "problems_fingerprint": problems_digest(problems, others, environment_seed(config.dataset.seed, environment)),
        "prompts_fingerprint": digest((render(tokenizer, prompt, template),) for prompt in prompts),
        "system_prompt": next((str(one["content"]) for one in messages if one["role"] == "system"), None),
        "chat_template_kwargs": dict(template),
    }


def describe_method(
    config: Config, environment: EnvironmentConfig, grader: str | None, engine: str, *, rewarded: bool, rewarding: bool
) -> dict[str, Any]:
    """How completions are sampled, graded, rewarded and played; `environment`, on a benchmark, may have less than the
    config's. `rewarded` is by the run's rewards, `rewarding` by an environment."""
    own = {*filter(None, [grader]), *(config.rewards.funcs if rewarded else ()), *environment.own_code}
    return {
        "sampling": sampling_settings(config),
        "num_samples": config.evaluation.num_samples,
        "batch_size": config.evaluation.batch_size,
        "seed": config.seed + SEED_OFFSET,
        "engine": engine,
        "shared_prefill": config.speed.shared_prefill,
        **grader_settings(config, grader, rewarding=rewarding),
        **(reward_settings(config) if rewarded else {}),
        **episode_settings(environment),
        "code": code_hashes(own),
    }


def weights_fingerprint(target: Target, model: Any) -> str:
    """A fingerprint of the weights: a hash of the files, or the commit of a hub model."""
    folder = target.adapter or (Path(target.source) if Path(target.source).is_dir() else None)
    if folder is None:
        config = getattr(model, "config", None)  # another engine has no model here
        return str(getattr(config, "_commit_hash", None) or target.source)
    hashed = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                hashed.update(block)
    return hashed.hexdigest()


_LINE = 200  # letters of an answer


def by_problem(completions: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The completions of each problem, in the order of the problems."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for item in completions:
        found.setdefault(int(item["problem"]), []).append(item)
    return [found[problem] for problem in sorted(found)]


def answers_text(completions: Sequence[Mapping[str, Any]]) -> str:
    """What a model answered to one problem, in one line: `wrong: 5`, or `2 of 4 right: 4 (2), 5, no answer`.

    Args:
        completions: of the problem, as they are stored.
    """
    answers = Counter(_answer(item) for item in completions)
    shown = ", ".join(answer + (f" ({count})" if count > 1 else "") for answer, count in answers.most_common())
    outcomes = [item.get("outcome") for item in completions]
    if not any(outcomes):
        rewards = [item["reward"] for item in completions if item.get("reward") is not None]
        return f"reward {', '.join(f'{reward:.3g}' for reward in rewards)}: {shown}" if rewards else shown
    if len(outcomes) == 1:
        return f"{str(outcomes[0]).replace('_', ' ')}: {shown}"
    return f"{outcomes.count(Outcome.RIGHT)} of {len(outcomes)} right: {shown}"


def _answer(item: Mapping[str, Any]) -> str:
    """The answer that a completion states, as graders read it; else its end."""
    stated = item.get("extracted")
    if stated is None:
        text = " ".join(str(item.get("completion") or "").split())
        stated = text if len(text) <= _LINE else f"…{text[-_LINE:]}"
    return str(stated) or "nothing"


_LISTED = 8
"""Runs that a message names."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is evaluated."""

    label: str
    """As the user named it."""
    source: str
    """What `model.name` is set to: a folder or a hub id."""
    adapter: Path | None = None
    """A folder with adapters of it."""
    run: Path | None = None
    """Its run, whose config supplies the defaults."""
    state: str = "final"
    """`final`, `best` or `checkpoint-N`."""
    script: tuple[Flag, ...] | None = None
    """Of the run of a script: what is known of how its model samples."""

    @property
    def recipe(self) -> Path | None:
        """What a config for this target is composed of: its run, if that is no script's."""
        return self.run if self.script is None else None

    def words(self, *overrides: str | Flag) -> tuple[str | Flag, ...]:
        """What a config for this target sets besides."""
        return (*(self.script or ()), *overrides, Flag("model.name", (self.source,)))

    def check_data(self, config: Config, keys: Iterable[str | Flag], example: str | None = None) -> None:
        """Raise a `ConfigError` if none of these keys and words of the user names problems for a script's run, or there
        are none, as for one of supervised training.

        Args:
            example: a command that names some; None for one of `covey eval`.
        """
        named = any(_NAMES_DATA.match(str(key)) for key in keys)
        none = not config.dataset.has_source and config.environment.factory is None
        if (none or (self.script is not None and not named)) and not config.evaluation.benchmarks:
            example = example or command("eval {run} dataset=gsm8k", run=self.label)
            raise ConfigError(
                f"{self.label} was trained {'without data' if none else 'by a script'}, so its held-out problems are "
                f"not known here: name some, as in `{example}`, with dataset.path=FILE for rows of your own, or "
                "benchmarks."
            )


_NAMES_DATA = re.compile(r"\+*dataset(\.(path|id|task|mixture\..*))?(=|$)")


def find_target(name: str, checkpoint: str | None = None) -> Target:
    """Resolve a name to a target.

    Args:
        name: as given by the user.
        checkpoint: of a run: `final`, `best`, or the number of a step; None takes the final model.

    Raises:
        RunDirectoryError: it is a run without a final model, a checkpoint that is not there or incomplete (the message
            lists the others), or there is nothing by that name among other runs.
        ModelError: adapters without the name of their base model.
    """
    folder = Path(name).expanduser()
    if checkpoint not in (None, "final"):
        return _checkpoint(name, RunDirectory(folder), str(checkpoint))
    if folder.name == "best_model" and (folder.absolute().parent / "config.yaml").is_file():
        return _checkpoint(name, RunDirectory(folder.absolute().parent), "best")
    if (folder / "config.yaml").is_file():
        run = RunDirectory(folder)
        run.refuse_newer()
        if script_of(run.config) is not None:
            return _of_script(name, run)
        if not run.final_model.is_dir():
            newest = run.newest_checkpoint()
            advice = f"Evaluate {newest}, or resume the run." if newest else "Resume the run."
            raise RunDirectoryError(f"{folder} has no final_model: the run has not finished. {advice}")
        return _with_adapters(name, run.final_model, folder, "final")
    run = RunDirectory(folder.resolve().parent)
    if folder.name.startswith("checkpoint-") and run.config.is_file():
        run.refuse_newer()
        if not is_complete(folder):
            raise _no_checkpoint(RunDirectory(folder.parent), folder.name.removeprefix("checkpoint-"))
        return _with_adapters(name, folder, folder.parent, folder.name)
    if folder.is_dir():
        return _with_adapters(name, folder, None, "final")
    if folder.name == run.final_model.name and run.config.is_file():
        return find_target(str(folder.parent))  # which says why there is none
    _refuse_missing_run(name, folder)
    if folder.name.startswith("checkpoint-"):
        _refuse_missing_run(str(folder.parent), folder.parent)
    return Target(name, name)


def _refuse_missing_run(name: str, folder: Path) -> None:
    """Raise if there are runs next to this path: then a run is missing, and the hub is not queried."""
    runs = sorted(path.parent.name for path in folder.absolute().parent.glob("*/config.yaml"))
    if len(folder.parts) == 1 or folder.exists() or not runs:
        return
    near = difflib.get_close_matches(folder.name, runs, n=3, cutoff=0.5)
    if near:
        guess = f"Did you mean {' or '.join(str(folder.parent / run) for run in near)}?"
    else:
        more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
        guess = f"The runs in {folder.parent} are {', '.join(runs[:_LISTED])}{more}."
    raise RunDirectoryError(f"There is no run {name}. {guess}")


def _of_script(name: str, run: RunDirectory) -> Target:
    """The newest weights that a script has saved since its training began: in its folder, or a checkpoint."""
    kinds = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
    saved = [
        *(file for kind in kinds for file in run.root.glob(kind)),
        *(path for _, path in run.complete_checkpoints()),
    ]
    newest = max(saved, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None or newest.stat().st_mtime < run.started:
        raise RunDirectoryError(
            f"{name} was trained by a script that has saved no model there: trainer.save_model() does, and save_steps "
            "writes checkpoints. A model that it saved elsewhere is named by its own folder."
        )
    ended = newest.is_file() or (run.summary.is_file() and not has_failed(run))
    folder = newest if newest.is_dir() else run.root
    return _with_adapters(name, folder, run.root, "final" if ended else newest.name)


def _checkpoint(name: str, run: RunDirectory, which: str) -> Target:
    if not run.config.is_file():
        raise RunDirectoryError(
            f"{name} is not a run directory, so it has no checkpoint {which}: there is no config.yaml."
        )
    run.refuse_newer()
    if which == "best":
        found = run.best_checkpoint()
        if found is None:
            raise RunDirectoryError(
                f"{run.root} has no best checkpoint: it has not been evaluated after its first step, or was trained "
                "with evaluation.keep_best=false."
            )
        return _with_adapters(name, found, run.root, "best")
    found = run.checkpoint(int(which)) if which.isdecimal() else None
    if found is None or not is_complete(found):
        raise _no_checkpoint(run, which)
    return _with_adapters(name, found, run.root, found.name)


def _no_checkpoint(run: RunDirectory, which: str) -> RunDirectoryError:
    steps = ", ".join(str(step) for step, _ in run.complete_checkpoints()) or "none"
    return RunDirectoryError(
        f"{run.root} has no whole checkpoint {which}; training.save_total_limit says how many are kept. Name the run "
        f"with --checkpoint final, best, or the step of one that is there ({steps})."
    )


def _with_adapters(name: str, folder: Path, run: Path | None, state: str) -> Target:
    described, script = folder / "adapter_config.json", None if run is None else _sampled_by_script(run)
    if not described.is_file():
        return Target(name, str(folder), None, run, state, script)
    try:
        base = json.loads(described.read_bytes())["base_model_name_or_path"]
    except (ValueError, KeyError):
        base = None
    if not base:
        raise ModelError(f"{described} does not say which model its adapters belong to (base_model_name_or_path).")
    return Target(name, str(base), folder, run, state, script)


def _sampled_by_script(run: Path) -> tuple[Flag, ...] | None:
    config = RunDirectory(run).config
    if script_of(config) is None:
        return None
    record = read_yaml(config)
    model, training = record.get("model") or {}, record.get("training") or {}
    known = {f"model.{k}": model.get(k) for k in ("revision", "dtype", "attn_implementation", "trust_remote_code")}
    known |= {f"training.{k}": training.get(k) for k in ("max_completion_length", "chat_template_kwargs")}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in known.items() if value}
    return tuple(Flag(key, (text,)) for key, text in texts.items())
