"""Rewards to advantages by an objective, and the KL of a step, which a controller or a limit reads.

`apply_objective` and `loss_with_kl` read and change what TRL's trainer holds; the rest knows tensors, not TRL.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.config import Config
from covey.errors import ConfigError, TrainingError
from covey.objective import XDR, AdaptiveKL, KLController, Objective, kl_per_token, make
from covey.objective.groups import implied_weights, weight_metrics, widest_dtype
from covey.objective.interface import BuiltIn, adapted, check_objective, needs_of, passer, reported
from covey.objective.registry import UnstorableError, load, make_own, plain_copy
from covey.rewards.registry import IMPLIED_GRADERS, MODE_GRADERS, MODEL_PREFIX, canonical_name
from covey.rewards.workers.log_values import is_taken
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.names import weight_column
from covey.training.replaced import replaced
from covey.workers.plain_data import NotPlainError, plain

logger = logging.getLogger(__name__)


def apply_objective(trainer: Any, output: dict[str, Any], rewards_BF: Tensor) -> dict[str, list[Any]]:
    """Replace TRL's advantages, also those in its log, by the objective's, where it computes any.

    Args:
        output: TRL's batch; its advantages are replaced.
        rewards_BF: of each function, over all processes.

    Returns:
        The columns that the objective returned.
    """
    # taken out of TRL's log, which would keep them beside a later batch whose rewards name none
    modes = trainer._logs["extra"].pop(names.MODE, None) if "modes" in trainer._needs else None
    advantages_B, metrics, columns = compute_advantages(
        trainer._objective,
        ScoredRewards.of(trainer, rewards_BF),
        mask_BT=loss_mask(output),
        ref_logps_BT=output.get("ref_per_token_logps"),
        policy_logps_BT=_policy_logps(trainer, output),
        beta=trainer.beta,
        gather=trainer.accelerator.gather,
        taken=(*trainer.reward_func_names, *trainer._logs["extra"]),
        modes=list(modes)[-len(rewards_BF) :] if modes else None,
    )
    for name, value in metrics.items():
        trainer._metrics["train"][name].append(value)
    if advantages_B is not None:
        local = len(output["advantages"])
        start = trainer.accelerator.process_index * local
        output["advantages"] = advantages_B[start : start + local].to(output["advantages"])
        log = trainer._logs["advantages"]
        for _ in range(min(len(advantages_B), len(log))):
            log.pop()
        log.extend(advantages_B.tolist())
    return {names.MODE: [*modes], **columns} if modes else columns


def _policy_logps(trainer: Any, batch: dict[str, Any]) -> Tensor | None:
    """Log-probs of the completion tokens under the policy that sampled them, if at hand or needed."""
    kept: Tensor | None = batch.get("old_per_token_logps")
    if kept is not None or "policy" not in trainer._needs:
        return kept
    logps_BT: Tensor = trainer.sampling.score_batch(batch)
    return logps_BT


def loss_with_kl(trainer: Any, inputs: dict[str, Any], compute: Callable[[], Any]) -> Tensor:
    """TRL's loss of a chunk; a controller or a limit needs the KL of the whole step.

    Under an objective that uses the reference itself, it has no KL term and Covey logs the KL.

    Args:
        inputs: the chunk.
        compute: TRL's `_compute_loss` of it.
    """
    if not _measures_kl(trainer):
        return torch.as_tensor(compute())
    beta = trainer.beta if "reference" not in trainer._needs else 0.0
    with replaced(trainer, beta=beta, _keeps_loss_logps=True):
        loss = torch.as_tensor(compute())
    logps_BT, trainer._loss_logps_BT = trainer._loss_logps_BT, None
    trainer._kl_monitor.add(logps_BT, inputs["ref_per_token_logps"], loss_mask(inputs))
    return loss


def end_kl_step(trainer: Any) -> None:
    """After the last micro-batch of a step: log its KL and update β."""
    if not (_measures_kl(trainer) and trainer.accelerator.sync_gradients):
        return
    beta, metrics = trainer.beta, trainer._metrics["train"]
    kl, trainer.beta = trainer._kl_monitor.end_step(beta, lambda t: trainer.accelerator.reduce(t, reduction="sum"))
    metrics["objective/beta"].append(beta)
    if kl is not None and "reference" in trainer._needs:
        metrics["kl"].append(kl)


def _measures_kl(trainer: Any) -> bool:
    used = "reference" in trainer._needs or trainer._kl_monitor.acts
    return bool(trainer.model.training and trainer.beta != 0 and used)


RIGHT_FROM = 1.0
"""A completion counts as right from this reward of the first function on."""


@dataclass(frozen=True, slots=True)
class ScoredRewards:
    """The rewards of a generation batch over all processes, and how they are combined."""

    per_function: Tensor
    """`[B, F]`, one column per reward function; NaN where it does not apply."""
    weights: Tensor
    """`[F]`."""
    aggregation: str
    """TRL's `multi_objective_aggregation`."""
    num_generations: int

    @classmethod
    def of(cls, trainer: Any, rewards_BF: Tensor) -> ScoredRewards:
        """The rewards, and how the trainer combines them."""
        return cls(rewards_BF, trainer.reward_weights, trainer.multi_objective_aggregation, trainer.num_generations)

    def only(self, counts_B: Tensor) -> ScoredRewards:
        """The same, with NaN in the rows that do not count."""
        return replace(self, per_function=self.per_function.masked_fill(~counts_B[:, None], torch.nan))

    def grouped(self) -> Tensor:
        """The weighted sums `[P, G]`, by TRL's rules; NaN where no reward function applies.

        `sum_then_normalize` adds the rewards; `normalize_then_sum` first scales each function's rewards
        within the group.
        """
        groups_PGF = self.per_function.view(-1, self.num_generations, self.per_function.shape[-1])
        values_PGF = groups_PGF
        if self.aggregation == "normalize_then_sum":
            centred_PGF = groups_PGF - groups_PGF.nanmean(dim=1, keepdim=True)
            count_P1F = (~groups_PGF.isnan()).sum(dim=1, keepdim=True)
            variance_P1F = centred_PGF.square().nansum(dim=1, keepdim=True) / (count_P1F - 1)
            variance_P1F = torch.where(count_P1F > 1, variance_P1F, torch.nan)
            values_PGF = centred_PGF / (variance_P1F.sqrt() + 1e-4)
        summed_PG = (values_PGF * self.weights.to(values_PGF)).nansum(dim=-1)
        return summed_PG.masked_fill(groups_PGF.isnan().all(dim=-1), torch.nan)

    def correct(self) -> Tensor:
        """Which completions are right, `[P, G]`."""
        return (self.per_function[:, 0] >= RIGHT_FROM).view(-1, self.num_generations)


def compute_advantages(
    objective: Objective,
    scored: ScoredRewards,
    *,
    mask_BT: Tensor,
    ref_logps_BT: Tensor | None,
    policy_logps_BT: Tensor | None,
    beta: float,
    gather: Callable[[Tensor], Tensor],
    taken: Collection[str] = (),
    modes: Sequence[str | None] | None = None,
) -> tuple[Tensor | None, dict[str, float], dict[str, list[Any]]]:
    """The advantages of all completions over all processes, `[B]`, in the order of the rewards; metrics; and columns,
    with a value for each completion.

    Processes exchange sums over completions only.

    Args:
        objective: computes the advantages.
        scored: the rewards, over all processes.
        mask_BT: the completion tokens that the loss counts, of this process. A completion without any (truncated ones,
            when they are masked) leaves its group.
        ref_logps_BT: log-probs under the reference, of this process; None without a reference.
        policy_logps_BT: the same under the policy.
        beta: weight of the KL divergence.
        gather: concatenates a tensor over all processes.
        taken: names of columns that the objective may not use.
        modes: the answer mode of each completion, over all processes; None where there is none. For an objective that
            needs them.

    Returns:
        None for the advantages if the objective uses TRL's.

    Raises:
        TrainingError: the objective fails, or what it returns cannot be used.
    """
    columns = {"lengths": mask_BT.sum(dim=1)}
    for name, logps_BT in (("reference", ref_logps_BT), ("policy", policy_logps_BT)):
        if logps_BT is not None:
            # other values may be NaN or infinite, so they are not multiplied by 0
            columns[name] = torch.where(mask_BT.bool(), logps_BT, 0.0).sum(dim=1, dtype=widest_dtype(logps_BT))
    wide = widest_dtype(mask_BT)
    gathered = gather(torch.stack([column.to(wide) for column in columns.values()], dim=1))
    grouped = {name: gathered[:, index].reshape(-1, scored.num_generations) for index, name in enumerate(columns)}
    correct_PG = scored.correct()
    scored = scored.only(grouped["lengths"].flatten() > 0)
    rewards_PG = scored.grouped()
    mask_PG = torch.isfinite(rewards_PG)
    rewards_PG = rewards_PG.masked_fill(~mask_PG, torch.nan)
    needs = needs_of(objective)
    more = {"correct_PG": correct_PG & mask_PG} if "correct" in needs else {}
    if "modes" in needs:
        more["modes_PG"] = _mode_numbers(objective, modes, scored.num_generations).to(mask_PG.device)
    with reported(objective, "advantages", TrainingError):
        found = passer(objective)(
            rewards_PG=rewards_PG,
            mask_PG=mask_PG,
            ref_logps_PG=grouped.get("reference") if needs & {"reference", "reference_logps"} else None,
            policy_logps_PG=grouped.get("policy"),
            lengths_PG=grouped["lengths"],
            beta=beta,
            **more,
        )
    advantages_PG, metrics, own_columns = checked(found, type(objective).__name__, mask_PG, taken)
    weights_PG = implied_weights(advantages_PG, rewards_PG, mask_PG)
    if isinstance(objective, BuiltIn) and (own := own_columns.get(weight_column(objective.NAME))) is not None:
        weights_PG = torch.tensor(own, dtype=wide, device=mask_PG.device).view(mask_PG.shape)
    metrics = {
        **weight_metrics(weights_PG, mask_PG, grouped["lengths"], correct_PG),
        "objective/log_odds": 0.0,  # without a temperature
        "objective/excluded_completions": float((~mask_PG).sum()),
        **metrics,
    }
    if advantages_PG is not None:
        advantages_PG = advantages_PG.detach().to(mask_PG.device, torch.float32).masked_fill(~mask_PG, 0.0).flatten()
    return advantages_PG, metrics, own_columns


def _mode_numbers(objective: Any, modes: Sequence[str | None] | None, num_generations: int) -> Tensor:
    """The modes as numbers, `[P, G]`: equal within a group where the names are, -1 for none. Raises a `TrainingError`
    if there are none."""
    if modes is None:
        raise TrainingError(
            f"The objective {type(objective).__name__} needs the answer mode of each right completion, and no reward "
            "of this step named any: use a reward whose grader does, such as countdown, or log them from a reward "
            'function by log_extra("mode", [...]), a text or None for each completion.'
        )
    numbers: list[list[int]] = []
    for start in range(0, len(modes), num_generations):
        known: dict[str, int] = {}
        group = modes[start : start + num_generations]
        numbers.append([-1 if mode is None else known.setdefault(mode, len(known)) for mode in group])
    return torch.tensor(numbers, dtype=torch.int64)


def loss_mask(batch: Mapping[str, Any]) -> Tensor:
    """Which completion tokens the loss counts, `[B, T]`, in a batch with TRL's keys."""
    mask: Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


_Refuse = Callable[[str], TrainingError]


def checked(
    found: Any, kind: str, mask_PG: Tensor, taken: Collection[str]
) -> tuple[Tensor | None, dict[str, float], dict[str, list[Any]]]:
    """The advantages, metrics and columns that an objective returned.

    Args:
        found: what it returned.
        kind: the name of its class, for messages.
        mask_PG: the completions that count; only their advantages have to be finite.
        taken: columns that belong to rewards.

    Returns:
        The advantages, `[P, G]` or None; the metrics; the columns, each a list of `P·G` values of plain data.

    Raises:
        TrainingError: with what cannot be used, and why.
    """

    def refuse(text: str) -> TrainingError:
        return TrainingError(f"The objective {kind} returned {text}")

    if not isinstance(found, tuple) or len(found) not in (2, 3):
        what = f"{len(found)} values" if isinstance(found, tuple) else f"a value of the type {type(found).__name__}"
        raise refuse(f"{what}; it must return (advantages, metrics) or (advantages, metrics, columns).")
    advantages_PG, metrics, *rest = found
    columns = rest[0] if rest else {}
    for what, value in (("metrics", metrics), ("columns", columns)):
        if not isinstance(value, Mapping) or not all(isinstance(name, str) and name.strip() for name in value):
            raise refuse(f"{what} that are no mapping from names to values, but {_brief(value)}.")
    if advantages_PG is not None:
        _check_advantages(advantages_PG, mask_PG, refuse)
    return (
        advantages_PG,
        {name: _number(name, value, refuse) for name, value in metrics.items()},
        {name: _column(name, value, mask_PG.shape, taken, refuse) for name, value in columns.items()},
    )


def _check_advantages(advantages_PG: Any, mask_PG: Tensor, refuse: _Refuse) -> None:
    if not isinstance(advantages_PG, Tensor):
        raise refuse(f"{_brief(advantages_PG)} as advantages; they must be a tensor, or None for TRL's.")
    if advantages_PG.shape != mask_PG.shape:
        raise refuse(
            f"advantages of shape {tuple(advantages_PG.shape)} for rewards of shape {tuple(mask_PG.shape)}; the two "
            "must be the same."
        )
    if advantages_PG.is_complex() or advantages_PG.dtype == torch.bool:
        raise refuse(f"advantages of the dtype {advantages_PG.dtype}; they must be real numbers.")
    bad = (~torch.isfinite(advantages_PG).to(mask_PG.device) & mask_PG).nonzero()
    if len(bad):
        group, completion = bad[0].tolist()
        raise refuse(
            f"{len(bad)} advantages that are not finite (NaN or infinite), the first for completion {completion} of "
            f"group {group}. Entries outside of mask_PG hold NaN rewards: leave them out of every sum and mean."
        )


def _number(name: str, value: Any, refuse: _Refuse) -> float:
    if (not name.startswith("objective/") and is_taken("log_metric", name, ())) or f"train/{name}" == names.BETA:
        raise refuse(f"the metric {name!r}, a name that Covey or TRL uses: call it objective/… .")
    try:
        number = plain(value)
    except NotPlainError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise refuse(f"the metric {name!r} with {_brief(value)}; a metric is one number.")
    return float(number)


def _column(name: str, value: Any, shape: torch.Size, taken: Collection[str], refuse: _Refuse) -> list[Any]:
    if name in taken or (is_taken("log_extra", name, ()) and name not in names.COLUMN_WEIGHTS):
        owner = "a reward has" if name in taken else "Covey has"
        raise refuse(f"the column {name!r}, a name that {owner} for a column of its own: choose another.")
    try:
        rows = plain(value)
    except NotPlainError as problem:
        raise refuse(f"the column {name!r} with {problem}; columns hold plain data.") from None
    groups, size = shape
    fits = isinstance(rows, list) and len(rows) == groups
    if not fits or not all(isinstance(row, list) and len(row) == size for row in rows):
        raise refuse(f"the column {name!r} with {_brief(value)}; it must be [{groups}, {size}], a value a completion.")
    return [None if isinstance(one, float) and math.isnan(one) else one for row in rows for one in row]


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a value of the type {type(value).__name__}" + ("" if shape is None else f" and the shape {tuple(shape)}")


class KLMonitor:
    """Accumulates the KL over the micro-batches of an optimiser step.

    Every token of the step counts alike, so the result does not depend on the split into micro-batches.
    """

    def __init__(self, controller: KLController | None, stop_above: float | None, beta: float) -> None:
        """
        Args:
            controller: updates β; None keeps it.
            stop_above: the KL, in nats per token, above which the run ends; None for no limit.
            beta: β at the start.

        Raises:
            ConfigError: there is no reference model.
        """
        if beta == 0 and (controller is not None or stop_above is not None):
            setting = "A KL controller" if controller is not None else "A limit on the KL (stop_above_kl)"
            raise ConfigError(
                f"{setting} needs a reference model, and with beta=0 there is none: set beta above 0, such as 0.04."
            )
        self._controller = controller
        self._stop_above = stop_above
        self._totals: Tensor | None = None
        self._exceeded: float | None = None

    @property
    def acts(self) -> bool:
        """Whether training depends on the KL."""
        return self._controller is not None or self._stop_above is not None

    @property
    def moves_beta(self) -> bool:
        """Whether β changes during training."""
        return self._controller is not None

    @property
    def exceeded(self) -> bool:
        """Whether a step's KL was above the limit."""
        return self._exceeded is not None

    def add(self, logps_BT: Tensor, ref_logps_BT: Tensor, mask_BT: Tensor) -> None:
        """Add a micro-batch of this process: log-probs under policy and reference, and which tokens count."""
        kl_BT = torch.where(mask_BT.bool(), kl_per_token(logps_BT, ref_logps_BT), 0.0)
        wide = widest_dtype(kl_BT)
        rows = mask_BT.new_tensor(len(mask_BT))
        totals = torch.stack([kl_BT.sum(dtype=wide), mask_BT.sum().to(wide), rows.to(wide)])
        self._totals = totals if self._totals is None else self._totals + totals

    def end_step(self, beta: float, reduce: Callable[[Tensor], Tensor]) -> tuple[float | None, float]:
        """The mean KL per token of the step, over all processes, and β for the next.

        Args:
            beta: β of this step.
            reduce: sums a tensor over all processes.

        Returns:
            None for the KL if no token of the step counted; β then stays, as it does for a KL that is not a number.
        """
        if self._totals is None:
            return None, beta
        total, tokens, completions = reduce(self._totals).tolist()
        self._totals = None
        if tokens == 0:
            return None, beta
        kl = total / tokens
        if self._stop_above is not None and not kl <= self._stop_above:  # NaN counts as exploded
            self._exceeded = kl
        if self._controller is not None and not math.isnan(kl):  # one NaN would otherwise make β NaN for ever
            beta = float(self._controller.next_beta(beta, kl, int(completions)))
        return kl, beta

    def error(self, step: int, output_dir: Path) -> TrainingError:
        """The error to raise after `exceeded`.

        The KL of a step is that of the weights before it, so the checkpoint of the previous step already holds the bad
        weights.

        Args:
            step: the optimiser step whose KL was too high.
            output_dir: of the checkpoints.
        """
        good = [path for number, path in RunDirectory(output_dir).complete_checkpoints() if number < step - 1]
        advice = "a lower learning rate, a larger β (beta), or an adaptive one would limit it"
        if good:
            where = f"The last good checkpoint is {good[-1]}: resume from it under another run_name; {advice}."
        else:
            where = f"There is no checkpoint from before that; in a new run, {advice}."
        return TrainingError(
            f"The KL divergence from the reference was {self._exceeded:.4g} nats per token in step {step}, above the "
            f"limit of {self._stop_above:g} (objective.kl.stop_above), so the run was stopped. {where}"
        )


Given = Objective | type[Objective] | None
"""What `covey.train(objective=…)` takes."""


def objective_arguments(config: Config, given: Given = None) -> dict[str, Any]:
    """The keyword arguments of `GRPOTrainer` for `objective.*`. Needs no model, so call it early.

    Args:
        given: the objective, or its class, in place of the one that the config names.

    Raises:
        ConfigError: the objective cannot be made, or not be used with these settings or this loss.
    """
    chosen, kl, training = config.objective, config.objective.kl, config.training
    objective = _make_objective(config, given)
    _check_modes(config, objective)
    controller = None
    if kl.controller == "adaptive":
        controller = AdaptiveKL(target=kl.kl_target, horizon=kl.kl_horizon, step_size=kl.kl_ctl_step_size)
    return {
        "objective": adapted(
            objective,
            loss_type=training.loss_type,
            num_generations=training.num_generations,
            max_completion_length=training.max_completion_length,
            beta=training.beta,
        ),
        "kl_controller": controller,
        "stop_above_kl": kl.stop_above,
        "resample_groups": chosen.resample_groups,
    }


def _check_modes(config: Config, objective: Any) -> None:
    """Raise a `ConfigError` if the objective needs answer modes and no reward of the run names any."""
    if "modes" not in needs_of(objective):
        return
    funcs = config.rewards.funcs
    own = [name for name in funcs if ":" in name and not name.startswith(MODEL_PREFIX)]  # these may log modes
    if own or any(IMPLIED_GRADERS.get(canonical_name(name)) in MODE_GRADERS for name in funcs if ":" not in name):
        return
    name = config.objective.name
    raise ConfigError(
        f"objective.name={name} compares right answers by their modes, and no reward of this run names any: "
        f"rewards.funcs=[{', '.join(funcs)}]. Use a reward that does ({', '.join(MODE_GRADERS)}, as with "
        f'dataset=countdown), or a function of your own that calls log_extra("mode", …) with a text or None for each '
        "completion." + (" Or set objective.xdr_adaptive=false." if name == XDR.NAME else "")
    )


def _make_objective(config: Config, given: Given) -> Any:
    chosen = config.objective
    if inspect.isclass(given):
        return make_own(given, chosen.settings, chosen.name)
    if given is not None:
        check_objective(given)
        return given
    if chosen.built_in is None:
        return load(chosen.name, chosen.settings)
    return make(chosen.name, **dataclasses.asdict(chosen.built_in))


def in_use(objective: Any, **run: Any) -> Any:
    """The objective adapted to a run, see `Objective.for_run`; None without one. Raises a `ConfigError` if the run does
    not support it, or checkpoints could not store its state."""
    if objective is None:
        return None
    objective = adapted(objective, **run)
    try:
        state_of(objective)
    except TrainingError as error:
        raise ConfigError(str(error)) from error
    return objective


def state_of(objective: Any) -> Any:
    """A copy of the objective's state; None if it has none. Raises a `TrainingError` if it holds something else than
    tensors and plain data."""
    if not callable(getattr(objective, "state_dict", None)):
        return None
    with reported(objective, "state_dict", TrainingError):
        state = objective.state_dict()
    try:
        return plain_copy(state, f"state_dict() of the objective {type(objective).__name__}", tensors=True)
    except UnstorableError as problem:
        raise TrainingError(
            f"{problem}, which a checkpoint cannot store: only tensors, numbers, strings, None, and lists and mappings "
            "of these."
        ) from None


def restore_state(objective: Any, state: Any) -> None:
    """Give the objective the state that a checkpoint holds. Where only one of them has a state, a warning is logged.
    Raises a `TrainingError` if the objective does not take it."""
    has_state = callable(getattr(objective, "load_state_dict", None))
    if has_state and state is not None:
        with reported(objective, "load_state_dict", TrainingError):
            objective.load_state_dict(state)
    elif has_state:
        logger.warning(
            "The checkpoint holds no state of the objective %s, which starts anew.", type(objective).__name__
        )
    elif state is not None:
        logger.warning("The checkpoint holds the state of an objective, and this run's has none: it is dropped.")
