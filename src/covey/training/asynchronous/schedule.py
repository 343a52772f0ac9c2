"""`schedule.jsonl`: what an asynchronous run wrote when, by which weights, and which round trained on it.

One JSON object a line:

- `{"format": 1, "settings": {...}}`, the first line: what a replay must have in common with the run.
- `{"prompts": k, "digest": "..."}`: the prompts of round k were submitted; a digest of their tokens.
- `{"call": n, "version": v, "rows": [[k, place, start], ...], "tokens": [...], "open": [...]}`: the engine wrote so
  many further `tokens` of these completions, in one batch, by the weights of version v; `start` of each were there
  already. Those at the indices `open` were interrupted.
- `{"round": r, "groups": [[k, place], ...], "seeds": [...], "versions": [[[v, count], ...], ...]}`: round r trained on
  these groups; for each completion, its seed, and the versions of its tokens.

Version v is the weights after v rounds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from covey.errors import ConfigError
from covey.rollout.engine import InferenceEngine, NamedWeights, SamplingSettings
from covey.runlog.files import guard_disk, write_atomically
from covey.training.asynchronous.pool import Group, Place, Policy

logger = logging.getLogger(__name__)

FORMAT = 1
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the engine."""

    version: int
    rows: tuple[tuple[int, int, int], ...]
    """Round, place, and tokens at its start, of each completion."""
    tokens: tuple[int, ...]
    """Written by this call, of each completion."""
    open: tuple[int, ...] = ()
    """The indices of those that were interrupted."""


class ScheduleWriter:
    """Appends to a run's schedule.

    Args:
        path: of the file; what it holds is cut to `keep` bytes.
        settings: see `recorded_settings`; written at the start of a new file.
        keep: bytes to keep: those there were at the checkpoint from which the run resumes.
        copy: the file of another run whose bytes these are.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, keep: int = 0, copy: Path | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        source = path if copy is None else copy
        kept = source.read_bytes()[:keep] if keep and source.is_file() else b""
        if len(kept) < keep:
            logger.warning("%s lacks what was recorded before the checkpoint: it cannot be replayed.", source)
            kept = b""
        self._path = path
        self._calls = sum(line.startswith(b'{"call"') for line in kept.splitlines())
        write_atomically(path, kept)
        with guard_disk(path.name, path.parent):
            self._file = path.open("ab")
        if not kept:
            self._add({"format": FORMAT, "settings": dict(settings)})

    def prompts(self, number: int, prompts: Sequence[Sequence[int]]) -> None:
        """The prompts of a round were submitted."""
        self._add({"prompts": number, "digest": digest_of_prompts(prompts)})

    def call(self, call: Call) -> None:
        """The engine has returned."""
        self._add({"call": self._calls, **asdict(call)})
        self._calls += 1

    def round(self, number: int, groups: Sequence[Group]) -> None:
        """These groups have joined a round."""
        rows = [row for group in groups for row in group.rows]
        seeds, versions = [row.seed for row in rows], [row.versions for row in rows]
        self._add({"round": number, "groups": [one.key for one in groups], "seeds": seeds, "versions": versions})

    def sync(self) -> int:
        """Flush to the disk; returns the bytes of the file."""
        with guard_disk(self._path.name, self._path.parent):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Flush and close the file."""
        with guard_disk(self._path.name, self._path.parent):
            self._file.close()

    def _add(self, entry: Mapping[str, Any]) -> None:
        with guard_disk(self._path.name, self._path.parent):
            self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            self._file.flush()


@dataclass(frozen=True, slots=True)
class Schedule:
    """A recorded schedule."""

    path: Path
    settings: dict[str, Any]
    """What a replay must have in common with the run, by name."""
    calls: list[Call] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    rounds: dict[int, list[Place]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Schedule:
        """Read a file. A last line that was cut short is ignored: the run was killed while it wrote it. Raises a
        `ConfigError` if it cannot be read, or is no schedule."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError(
                f"training.schedule={path} cannot be read: {reason}. Give the schedule.jsonl of an asynchronous run."
            ) from error
        lines = text.splitlines()
        found: Schedule | None = None
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                if found is None:
                    if entry["format"] != FORMAT:
                        raise ConfigError(
                            f"training.schedule={path} has format {entry['format']}, and this version of Covey reads "
                            f"format {FORMAT}: replay it with the version that wrote it."
                        )
                    found = cls(path, dict(entry["settings"]))
                else:
                    found._take(entry)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if found is not None and number == len(lines) and not text.endswith("\n"):
                    break
                raise ConfigError(
                    f"training.schedule={path}: line {number} is no line of a schedule. Give the schedule.jsonl of an "
                    "asynchronous run (training.staleness above 0), unchanged."
                ) from error
        if found is None:
            raise ConfigError(f"training.schedule={path} is empty: give the schedule.jsonl of an asynchronous run.")
        return found

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise a `ConfigError`, with what differs, if a run with these settings cannot replay it."""
        names = [name for name, value in settings.items() if self.settings.get(name) != value]
        if not names:
            return
        shown = [f"{name} was {self.settings.get(name)} and is {settings[name]} here" for name in names[:_SHOWN]]
        more = f", and {len(names) - _SHOWN} more differ" if len(names) > _SHOWN else ""
        raise self.misfit("; ".join(shown) + more)

    def check_prompts(self, number: int, prompts: Sequence[Sequence[int]]) -> None:
        """Raise a `ConfigError` if the prompts of a round are others."""
        recorded = self.digests.get(number)
        if recorded is not None and recorded != digest_of_prompts(prompts):
            raise self.misfit(f"the prompts of its round {number} are others")

    def misfit(self, what: str) -> ConfigError:
        """The error of a run that is not the recorded one."""
        return ConfigError(
            f"training.schedule={self.path} does not fit this run, so it would end at other weights: {what}. "
            "Use the recorded run's config, model, data, packages and threads, or leave training.schedule out."
        )

    def _take(self, entry: dict[str, Any]) -> None:
        if "call" in entry:
            rows = tuple((int(number), int(place), int(start)) for number, place, start in entry["rows"])
            tokens, still_open = (tuple(map(int, entry[name])) for name in ("tokens", "open"))
            self.calls.append(Call(int(entry["version"]), rows, tokens, still_open))
        elif "prompts" in entry:
            self.digests[int(entry["prompts"])] = str(entry["digest"])
        else:
            self.rounds[int(entry["round"])] = [(int(number), int(place)) for number, place in entry["groups"]]


def digest_of_prompts(prompts: Sequence[Sequence[int]]) -> str:
    """A hash of the tokens of prompts."""
    return hashlib.sha256(json.dumps([list(ids) for ids in prompts]).encode()).hexdigest()[:16]


_SAME = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations"),
    *("num_generations", "generation_batch_size", "learning_rate", "lr_scheduler_type", "optim", "weight_decay"),
    *("max_grad_norm", "beta", "loss_type", "scale_rewards", "epsilon", "max_steps", "num_train_epochs", "bf16"),
    *("fp16", "chat_template_kwargs"),
)
"""Of the training arguments."""


def recorded_settings(
    args: Any,
    policy: Policy,
    sampling: SamplingSettings,
    engine: InferenceEngine,
    *,
    weights: str | None,
    **more: Any,
) -> dict[str, Any]:
    """What a run and its replay must have in common to end at the same weights: by name, as JSON reads it back;
    `weights` is their digest before the first step, or None where that is over."""
    values = {f"training.{name}": _plain(getattr(args, name)) for name in _SAME}
    values |= {f"sampling.{name}": _plain(value) for name, value in asdict(sampling).items()}
    return {
        "training.staleness": policy.staleness,
        "training.async_order": policy.order,
        "training.async_partial": policy.partial,
        "seed": int(args.seed),
        **values,
        "engine": type(engine).__name__,
        "threads of the rollout process": getattr(engine, "threads", None),
        **{name.replace("_", " "): value for name, value in more.items()},
        **({} if weights is None else {"weights": weights}),
    }


def digest_of_weights(weights: NamedWeights) -> str:
    """A hash of the names and shapes of weights, and of some numbers of each."""
    found = hashlib.sha256()
    for name, tensor in weights:
        sample = tensor.detach().flatten()[:: max(1, tensor.numel() // 1024)].float().cpu()
        found.update(f"{name} {list(tensor.shape)}".encode() + sample.numpy().tobytes())
    return found.hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or type(value) in (int, float, str, bool):
        return value
    return str(getattr(value, "value", value))
