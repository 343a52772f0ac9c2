"""A scripted policy that finds a hole in its grader: it adds, and then it repeats the sum that it was asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from covey.rollout import Completion, SamplingSettings
from fake_engine import FakeEngine

HONEST = "COVEY_TEST_HONEST"
"""Variable with the number of versions of the weights whose completions are sums; later ones repeat."""


class CopyingEngine(FakeEngine):
    """Named as `tests/support/copying_engine.py:CopyingEngine`."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingSettings, *, seed: int | None = None
    ) -> list[Completion]:
        found = []
        for prompt in prompts:
            numbers = re.findall(r"\d+", self.tokenizer.decode(prompt))[-2:]
            copied = (self.version or 0) >= int(os.environ.get(HONEST, "4"))
            text = " + ".join(numbers) if copied else str(sum(map(int, numbers)))
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            found.append(Completion([*ids, self.tokenizer.eos_token_id], truncated=False))
        return found
