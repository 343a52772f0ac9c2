"""What the settings of every built-in objective derive from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The settings of a built-in objective: a field `x` made by `option` is the key `objective.<name>_x`.

    The objective's own class derives from the same dataclass, so a setting is declared once.
    """

    def check_run(self, *, loss_type: str, num_generations: int, max_completion_length: int | None) -> None:
        """Check that a run can have this objective with these settings.

        Args:
            loss_type: of TRL's loss.
            num_generations: completions per prompt.
            max_completion_length: in tokens.

        Raises:
            BadKeyError: naming the key and what would work.
        """
