"""A trainer callback that writes down when each step ended, by the clock on the wall."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

FILE = "step_ends.txt"


class StepEnds(TrainerCallback):
    """Appends the seconds of a monotonic clock to a file of the run directory."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with (Path(args.output_dir) / FILE).open("a") as file:
            file.write(f"{time.monotonic()}\n")
