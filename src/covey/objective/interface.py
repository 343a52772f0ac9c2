"""The interface of an objective, from the rewards of groups to the advantages of TRL's loss, and its checks."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, Self

from torch import Tensor

from covey.config.groups.objectives import ObjectiveSettings
from covey.config.values import check_option
from covey.errors import ConfigError, CoveyError
from covey.importing import user_errors

Metrics = Mapping[str, float]
"""Numbers to log, by name (`objective/…`)."""
Columns = Mapping[str, Tensor | Sequence[Sequence[Any]]]
"""Values of each completion, by name: `[P, G]`, as a tensor or as nested lists of plain data."""

NEEDS = frozenset({"reference", "reference_logps", "policy", "correct", "modes"})


class Objective(ABC):
    """Turns the rewards of whole groups into advantages. Used in training only, not in evaluation.

    Any object with `advantages` is an objective; the rest is optional. One whose numbers depend on earlier batches has
    `state_dict()` and `load_state_dict(state)` as well: checkpoints hold that state, which consists of tensors,
    numbers, strings, None, and lists and mappings of these; on loading, its tensors are on the CPU.
    """

    @property
    def needs(self) -> frozenset[str]:
        """The inputs that `advantages` needs, out of:

        - `reference`: log-probabilities under the reference model. Such an objective uses β itself, so that the loss
          has no KL term of its own. With β = 0 there is no reference model, and it gets None.
        - `reference_logps`: the same log-probabilities, but the KL term of the loss stays.
        - `policy`: log-probabilities under the policy that generated the completions. They cost a forward pass if TRL
          does not compute them. An objective without this need still gets them when they are available.
        - `correct`: which completions are right, as the keyword argument `correct_PG`.
        - `modes`: the answer modes of right completions, as the keyword argument `modes_PG`. The run needs a reward
          whose grader names modes, or one that logs them as the column `mode`.
        """
        return frozenset()

    @abstractmethod
    def advantages(
        self,
        rewards_PG: Tensor,
        mask_PG: Tensor,
        *,
        ref_logps_PG: Tensor | None,
        policy_logps_PG: Tensor | None,
        lengths_PG: Tensor,
        beta: float,
        **more: Any,
    ) -> tuple[Tensor | None, Metrics] | tuple[Tensor | None, Metrics, Columns]:
        """The advantages of all completions of a generation batch, over all processes.

        A class that takes `**kwargs` may leave out what it does not need.

        Args:
            rewards_PG: weighted sum of the rewards, `[P, G]`; NaN where `mask_PG` is false.
            mask_PG: which completions count. The others must be excluded from the group before any normalisation: those
                without a reward, and those without a token in the loss (truncated ones, if masked). Their advantages
                become 0.
            ref_logps_PG: log-probability of each completion under the reference, summed over its tokens, in nats.
            policy_logps_PG: the same under the policy that generated them.
            lengths_PG: completion tokens in the loss.
            beta: current weight β of the KL divergence.
            more: further inputs, by `needs`: `correct_PG`, booleans; `modes_PG`, int64: within a group, completions
                with equal numbers have the same mode, -1 is none.

        Returns:
            Advantages `[P, G]`, or None to keep TRL's own; metrics; and, if there are any, columns, which are recorded
            with the completions.
        """

    def for_run(self, *, loss_type: str, num_generations: int, max_completion_length: int | None) -> Self:
        """This objective, adapted to the run that it is used in. May be called more than once, and gets by keyword
        those of the arguments that it takes.

        Args:
            loss_type: of TRL's loss.
            num_generations: completions per prompt.
            max_completion_length: in tokens.
            beta: weight of the KL divergence at the start, for one that takes it.

        Raises:
            ConfigError: the run does not support it.
        """
        return self


def needs_of(objective: Any) -> frozenset[str]:
    """What an objective needs; nothing if it does not say."""
    return frozenset(getattr(objective, "needs", ()))


def adapted(objective: Any, **run: Any) -> Any:
    """The objective's `for_run`, given those of its arguments that it takes; the objective itself without one.

    Raises:
        ConfigError: the run does not support it, or what it returns is no objective.
    """
    method = getattr(objective, "for_run", None)
    if method is None:
        return objective
    with reported(objective, "for_run", ConfigError):
        taken = inspect.signature(method).parameters.values()
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken)
        names = {parameter.name for parameter in taken}
        found = method(**{name: value for name, value in run.items() if takes_any or name in names})
    check_objective(found, f"What for_run of {type(objective).__name__} returned")
    return found


def check_objective(objective: Any, what: str = "The objective") -> None:
    """Check before training that this is an objective.

    Raises:
        ConfigError: with what is missing.
    """
    kind = type(objective).__name__
    made = (
        "It is made by covey.objective.make, or an instance of a class with advantages(self, rewards_PG, mask_PG, "
        "**kwargs), such as one derived from covey.objective.Objective."
    )
    if inspect.isclass(objective):
        raise ConfigError(f"{what} is the class {objective.__name__} itself, not an instance of it. {made}")
    if not callable(getattr(objective, "advantages", None)):
        raise ConfigError(f"{what} of type {kind} has no method advantages. {made}")
    needs: Any = getattr(objective, "needs", frozenset())
    if not isinstance(needs, frozenset | set) or needs - NEEDS:
        raise ConfigError(f"{what} of type {kind} has needs={needs!r}; it must be a frozenset of {_listed(NEEDS)}.")
    passer(objective)
    has = [name for name in ("state_dict", "load_state_dict") if callable(getattr(objective, name, None))]
    if len(has) == 1:
        raise ConfigError(
            f"{what} of type {kind} has {has[0]} alone: checkpoints need both state_dict(self) and "
            "load_state_dict(self, state)."
        )


def passer(objective: Any) -> Callable[..., Any]:
    """The objective's `advantages`, to be called with all arguments by keyword.

    Raises:
        ConfigError: it does not take what an objective gets.
    """
    method = objective.advantages
    keywords = {"ref_logps_PG", "policy_logps_PG", "lengths_PG", "beta"}
    keywords |= {f"{need}_PG" for need in ("correct", "modes") if need in needs_of(objective)}
    signature = inspect.signature(method)
    given = dict.fromkeys(keywords)
    try:
        signature.bind(rewards_PG=None, mask_PG=None, **given)
    except TypeError:
        try:
            signature.bind(None, None, **given)
        except TypeError as error:
            raise ConfigError(
                f"advantages of {type(objective).__name__} cannot be called as an objective is ({error}): it gets "
                f"rewards_PG, mask_PG and by keyword {_listed(keywords)}. Take those that you need and **kwargs: "
                "def advantages(self, rewards_PG, mask_PG, **kwargs)."
            ) from error
        return lambda rewards_PG, mask_PG, **more: method(rewards_PG, mask_PG, **more)  # under names of its own
    return method  # type: ignore[no-any-return]


def reported(objective: Any, method: str, kind: type[CoveyError]) -> AbstractContextManager[None]:
    """Context manager: an exception of the objective's own code becomes a `CoveyError` that names it.

    Raises:
        CoveyError: the objective's own, or one of this kind.
    """
    return user_errors(f"The objective {type(objective).__name__} failed in {method}", kind)


def _listed(names: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(names))


class BuiltIn(ObjectiveSettings, Objective):
    """An objective whose settings are within their bounds, and check the run."""

    def __post_init__(self) -> None:
        for item in fields(self):
            check_option(f"{type(self).__name__}: {item.name}", getattr(self, item.name), item)

    def for_run(
        self,
        *,
        loss_type: str,
        num_generations: int,
        max_completion_length: int | None = None,
        beta: float | None = None,
    ) -> Self:
        """This objective, after checking that the run supports it."""
        self.check_run(
            loss_type=loss_type, num_generations=num_generations, max_completion_length=max_completion_length, beta=beta
        )
        return self
