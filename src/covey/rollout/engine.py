"""What an inference engine is: prompts as token ids in, completions out, and weights that can be replaced.

Training and evaluation know engines by this protocol only. Conversations are rendered, tokenised and decoded in front
of it (`covey.rollout.generate`, and TRL in training), so that every engine sees the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


NamedWeights = Iterable[tuple[str, "torch.Tensor"]]
"""Weights by their names in a checkpoint of the model, tied ones once, adapters merged."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How to sample a completion; the settings of the model's own generation config do not count."""

    max_completion_length: int
    """Longest completion in tokens."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy decoding."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that make up this share of the probability."""
    top_k: int = 0
    """Sample from this many of the likeliest tokens; 0 means all."""
    min_p: float = 0.0
    """Sample from tokens whose probability is at least this share of the highest one."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens that occurred before, and multiplies the negative ones."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a completion, besides the model's own end-of-sequence tokens."""
    logprobs: bool = False
    """Whether to return the log-probabilities of the sampled tokens."""
    support: bool = False
    """Whether to return which tokens could be sampled in each place, if the settings are such that some cannot."""
    support_top_k: int = 0
    """With `support`, where top-p or min-p cut tokens off and `top_k` is 0: sample from this many of the likeliest
    tokens; 0 means all."""

    @property
    def truncates(self) -> bool:
        """Whether top-k, top-p or min-p are set, which cut tokens off."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def most_kept(self) -> int:
        """Of this many of the likeliest tokens one is sampled; 0 means all."""
        bound = self.support_top_k if self.support and self.truncates else 0
        return self.top_k if self.top_k > 0 else bound


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of one prompt."""

    ids: list[int]
    """Its tokens, at least one unless it is `unfinished`, with the token that ended it."""
    truncated: bool
    """Whether it reached the length limit before it ended."""
    logps: list[float] | None = None
    """Log-probability of each token in the distribution that it was sampled from: after repetition penalty, masks,
    temperature, top-k, top-p and min-p (in greedy decoding: at temperature 1). None unless requested and supported."""
    text: str | None = None
    """Decoded without special tokens; None leaves decoding to the caller."""
    support: torch.Tensor | None = field(default=None, compare=False)
    """The tokens that could be sampled in each place, the sampled one among them: int32 `[T, C]` in main memory, -1
    where there are fewer than C. None unless requested, supported, and `SamplingSettings.truncates`."""
    unfinished: bool = False
    """Whether it was interrupted before its end and its length limit: it can be gone on with, from prompt and `ids`."""

    @property
    def length(self) -> int:
        """Its tokens, the one that ended it included."""
        return len(self.ids)


OnEnded = Callable[[int, Completion], None]
"""Takes the index of a prompt and its completion, which has ended."""


def cut(one: Completion, length: int) -> Completion:
    """A completion of at most this many tokens; text is left to the caller where some are cut off."""
    if one.length < length or (one.length == length and not one.unfinished):
        return one
    logps = None if one.logps is None else one.logps[:length]
    support = None if one.support is None else one.support[:length]
    return Completion(one.ids[:length], truncated=True, logps=logps, support=support)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, and what it requires."""

    logprobs: bool = False
    """It returns log-probabilities with `SamplingSettings.logprobs`."""
    seeded: bool = False
    """With a seed, the completions are a function of weights, prompts, settings and seed."""
    reasoning_vocab: bool = False
    """It restricts the tokens of a reasoning vocabulary to thinking (`covey.rollout.thinking.ThinkingMask`)."""
    collective: bool = False
    """All processes of a run must call `generate` equally often, even one with nothing to do."""
    row_limits: bool = False
    """`generate` takes `max_lengths`, the longest completion of each prompt; see `covey.rollout.complete`."""
    support: bool = False
    """It returns supports with `SamplingSettings.support`."""
    row_seeds: bool = False
    """`generate` takes one seed per prompt. The random number of a token is then a function of its row's seed and its
    place in the sequence, prompt included: no other row has an influence, and a completion that was interrupted goes on
    as it would have."""
    interruptible: bool = False
    """`generate` takes `interrupted`, a function without arguments that is asked between tokens: once it returns true,
    the call returns, and completions without an end are `unfinished`. It also takes `on_ended`, which is called with
    the index and the completion of each row that has ended, as soon as that is known."""


class InferenceEngine(Protocol):
    """Generates completions with weights that it can exchange."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def version(self) -> int | None:
        """The version of its weights: that of the last `sync`, in training the step; None before the first one."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingSettings, *, seed: int | None = None
    ) -> list[Completion]:
        """One completion per prompt, in order.

        Args:
            prompts: token ids, each at least one. A prompt is repeated, one after another, for several completions;
                these must differ by chance.
            sampling: the settings.
            seed: of this call's random numbers, with which the caller's random state is left as it is. None goes on
                with the engine's own. Engines that are not `seeded` ignore it.

        Raises:
            EngineError: the engine cannot be reached, or does not take the prompts or settings.
        """

    def sync(self, weights: NamedWeights, version: int) -> None:
        """Replace the weights.

        Args:
            weights: all of them, computed one by one. Each is valid until the next one is read: copy it.
            version: of these weights, from now on.

        Raises:
            EngineError: the engine does not have them now.
        """

    def close(self) -> None:
        """Free what it holds; it is not used afterwards."""
