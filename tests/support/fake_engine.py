"""An inference engine without a model: every completion says which weights its engine had, and answers by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from covey.rollout import Capabilities, Completion, SamplingSettings
from covey.rollout.engine import NamedWeights


class FakeEngine:
    """Named as `tests/support/fake_engine.py:FakeEngine`; the latest one is `FakeEngine.newest`."""

    capabilities = Capabilities(seeded=True)
    newest: FakeEngine

    def __init__(self, model_name: str, tokenizer: Any, **options: Any) -> None:
        self.model_name, self.tokenizer, self.options = model_name, tokenizer, options
        self.version: int | None = None
        self.weights: dict[str, Any] = {}
        self.closed = False
        type(self).newest = self

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingSettings, *, seed: int | None = None
    ) -> list[Completion]:
        draw, found = random.Random(seed), []
        for _ in prompts:
            text = f"version {self.version}: <answer>{draw.randrange(10)}</answer>"
            ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
            most = sampling.max_completion_length
            found.append(Completion(ids[:most], truncated=len(ids) > most))
        return found

    def sync(self, weights: NamedWeights, version: int) -> None:
        self.weights = {name: tensor.detach().clone() for name, tensor in weights}
        self.version = version

    def close(self) -> None:
        self.closed = True


class ScriptedEngine(FakeEngine):
    """Returns completions that were written beforehand, whatever the prompts, which it records."""

    def __init__(self, completions: Sequence[Completion]) -> None:
        super().__init__("", None)
        self.completions, self.prompts = list(completions), list[Sequence[int]]()

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingSettings, *, seed: int | None = None
    ) -> list[Completion]:
        self.prompts += prompts
        return self.completions
