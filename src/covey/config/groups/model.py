"""The group `model`: which model is trained, how it is loaded, and adapters."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from covey.config.groups.mesh import check_shape
from covey.config.values import BadKeyError, Group, option, show

SHIPPED = ("starter", "starter_agent")
"""The small models that come with Covey."""
STARTER_MARK = "covey_starter"
"""Key in the `config.json` of the models that `covey starter --task` makes, and of what is trained from them."""


def is_starter(name: str) -> bool:
    """Whether this is the folder of a model made for one task by `covey starter`."""
    try:
        return STARTER_MARK in json.loads((Path(name) / "config.json").read_bytes())
    except (OSError, ValueError, TypeError):
        return False


_NEW_ADAPTERS = "model.lora.active and not model.lora.path"
_EXPANDS = "model.reasoning_vocab_size != 0"
_IN_4BIT = "model.load_in_4bit"


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Group):
    """Low-rank adapters (LoRA), trained while the base weights stay frozen."""

    PREFIX: ClassVar[str] = "model.lora."

    enabled: bool | None = None
    """Whether to train adapters instead of all weights; null means yes when `rank` is set."""
    rank: int | None = option(None, low=1, high=65_536, live="model.lora.active")
    """Rank of the adapters; null means 16 when they are enabled."""
    alpha: float = option(32, above=0, live=_NEW_ADAPTERS)
    """Scale of the adapters: their output is multiplied by alpha / rank."""
    dropout: float = option(
        0.05, low=0, high=1, live=f"{_NEW_ADAPTERS} and (not training.disable_dropout or model.lora.dropout == 0)"
    )
    """Dropout on the adapters' inputs while training; the run's `disable_dropout` overrides it."""
    target_modules: str | tuple[str, ...] | None = option(None, live=_NEW_ADAPTERS)
    """Names of the layers that get adapters, a regular expression, or `all-linear`; null leaves it to peft."""
    modules_to_save: tuple[str, ...] | None = option(None, live=_NEW_ADAPTERS)
    """Names of further layers to train in full and save with the adapters."""
    use_rslora: bool = option(False, live=_NEW_ADAPTERS)
    """Whether to scale by alpha / sqrt(rank), which keeps high ranks stable (rsLoRA)."""
    use_dora: bool = option(False, live=_NEW_ADAPTERS)
    """Whether to train magnitude and direction separately (DoRA)."""
    path: str | None = None
    """A folder with adapters to start from, in place of new ones, such as a run's `final_model/`. Their own rank and
    layers apply."""
    merge: bool = option(False, live="model.lora.active")
    """Whether `final_model/` holds full weights with the adapters merged in, instead of the adapters alone."""

    @property
    def active(self) -> bool:
        """Whether adapters are trained."""
        return (self.rank is not None or self.path is not None) if self.enabled is None else self.enabled

    @property
    def effective_rank(self) -> int:
        """The rank of trained adapters."""
        return 16 if self.rank is None else self.rank

    def check_merge(self, *, sharded: bool) -> None:
        """Raise a `BadKeyError` if adapters cannot be merged at the end, as weights are sharded over processes."""
        if self.active and self.merge and sharded:
            raise BadKeyError(
                "model.lora.merge",
                "=true needs full weights in one process, and this run shards them (model.mesh_shape or the accelerate "
                "config): leave it out, and merge the adapters afterwards (covey export).",
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.target_modules, str):
            try:
                re.compile(self.target_modules)
            except re.error as error:
                raise BadKeyError(
                    "model.lora.target_modules",
                    f"={show(self.target_modules)} is not a regular expression ({error}); for names of layers "
                    "write a list, [q_proj,v_proj].",
                ) from None
        if self.path is None:
            return
        if self.enabled is False:
            raise BadKeyError("model.lora.path", f"={show(self.path)} has no effect with model.lora.enabled=false.")
        for name in ("rank", "target_modules", "modules_to_save", "use_rslora", "use_dora"):
            if getattr(self, name):
                raise BadKeyError(
                    f"model.lora.{name}",
                    f"={show(getattr(self, name))} is for new adapters; those in model.lora.path={show(self.path)} "
                    "bring their own: leave one of the two out.",
                )


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Group):
    """Which model is trained and how it is loaded."""

    PREFIX: ClassVar[str] = "model."

    name: str = "starter"
    """A name on the Hugging Face hub, a local folder, `kaggle://owner/model/transformers/variation` (through
    kagglehub), or a small model that comes with Covey: `starter`, or `starter_agent`, which can call a calculator and
    is the default with an environment or tools."""
    revision: str | None = option(None, live="model.from_hub")
    """Branch, tag or commit of a hub model; null means its main branch."""
    dtype: str | None = option(None, choices=("float32", "bfloat16", "float16", "auto"))
    """dtype in which the weights are loaded; `auto` takes that of the saved weights, null leaves it to the run."""
    attn_implementation: str | None = None
    """Attention implementation of transformers (`sdpa`, `eager`, `flash_attention_2`, ...); null lets it choose."""
    trust_remote_code: bool = False
    """Whether a hub model may run its own Python code on this machine."""
    use_generation_config: bool = False
    """Whether training samples as the model's own `generation_config.json` says (temperature, top_p, top_k, min_p,
    repetition_penalty; where the policy itself samples, all else), which then overrides `training.*`. Otherwise that
    file has no effect on training but for its end-of-sequence tokens, and what it would have changed is logged."""
    chat_template: str | None = None
    """A chat template, or a file with one, in place of the tokenizer's own."""
    load_in_8bit: bool = False
    """Whether to load the weights in 8 bits (bitsandbytes); only adapters can be trained then."""
    load_in_4bit: bool = False
    """Whether to load the weights in 4 bits (bitsandbytes); only adapters can be trained then."""
    bnb_4bit_quant_type: str = option("nf4", choices=("nf4", "fp4"), live=_IN_4BIT)
    """Data type of 4-bit weights."""
    use_bnb_nested_quant: bool = option(False, live=_IN_4BIT)
    """Whether the scales of 4-bit weights are themselves quantised to 8 bits."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Low-rank adapters."""
    mesh_shape: list[list[int | str]] | None = None
    """Device mesh of training, for instance `[[2, 4], ["dp", "fsdp"]]`: sizes, then axes. `dp` is replicas of the
    model, `fsdp` shards of each replica; `tp` (tensor parallel) is trained as more shards, with the batch divided."""
    reasoning_vocab_size: int | str = 0
    """Number of extra tokens, used between the thinking tags only; `full` copies the whole vocabulary."""
    reasoning_token_ids: str | int | tuple[int | str, ...] | None = option(None, live=_EXPANDS)
    """Which tokens are copied: a file of token ids, a range such as `0-9999`, or a list of ids and ranges; null starts
    at id 0."""
    reasoning_start: str = option("copy", choices=("copy", "same_text", "noise"), live=_EXPANDS)
    """Initial probability of the extra tokens: `copy` gives each that of the token it copies; `same_text` shares that
    out, so that the model generates the same text as before; `noise` is `copy` with noise on the copies' rows."""
    reasoning_noise: float = option(0.3, above=0, high=10, live="model.reasoning_start == 'noise'")
    """Expected norm of that noise, as a share of a row's norm; only with `reasoning_start=noise`."""
    reasoning_lr_multiplier: float = option(1.0, above=0, high=10_000)
    """Multiplies the learning rate of the extra tokens' rows, in the embedding and in the head."""

    @property
    def from_hub(self) -> bool:
        """Whether the name is one on the Hugging Face hub."""
        elsewhere = self.name in SHIPPED or self.name.startswith("kaggle://")
        return not elsewhere and not Path(self.name).expanduser().exists()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.load_in_8bit and self.load_in_4bit:
            raise BadKeyError("model.load_in_8bit", "=true and model.load_in_4bit=true exclude each other: set one.")
        if (self.load_in_8bit or self.load_in_4bit) and not self.lora.active:
            bits = "load_in_8bit" if self.load_in_8bit else "load_in_4bit"
            raise BadKeyError(
                f"model.{bits}",
                "=true leaves nothing to train: quantised weights need adapters, so set model.lora.rank=16.",
            )
        if isinstance(self.reasoning_token_ids, int):
            object.__setattr__(self, "reasoning_token_ids", str(self.reasoning_token_ids))
        if isinstance(self.reasoning_token_ids, tuple):
            object.__setattr__(self, "reasoning_token_ids", ",".join(map(str, self.reasoning_token_ids)))
        size = self.reasoning_vocab_size
        if (isinstance(size, str) and size != "full") or (isinstance(size, int) and size < 0):
            raise BadKeyError(
                "model.reasoning_vocab_size",
                f"={show(size)} is not possible: it must be 0, a number of tokens, or full.",
            )
        if self.reasoning_token_ids is not None and size == 0:
            raise BadKeyError(
                "model.reasoning_token_ids",
                f"={show(self.reasoning_token_ids)} has no effect with model.reasoning_vocab_size=0: say how many of "
                "them are copied, or full for all.",
            )
        if self.reasoning_noise != type(self).reasoning_noise and self.reasoning_start != "noise":
            raise BadKeyError(
                "model.reasoning_noise",
                f"={show(self.reasoning_noise)} has no effect with model.reasoning_start={self.reasoning_start}: set "
                "model.reasoning_start=noise, or leave it out.",
            )
        if self.reasoning_start != type(self).reasoning_start and size == 0:
            raise BadKeyError(
                "model.reasoning_start",
                f"={self.reasoning_start} has no effect with model.reasoning_vocab_size=0: say how many tokens are "
                "copied, or full for all. A model that is expanded already has its start from covey expand-vocab "
                "(--start).",
            )
        if self.mesh_shape is not None:
            check_shape(self.mesh_shape)
