"""Writing a model as a plain folder that `from_pretrained`, vLLM and other tools read: whole weights, its tokenizer,
and nothing of the training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ModelError
from covey.model.adapters import merge
from covey.model.loading import all_eos_ids, is_widened, quiet_weights
from covey.runlog.files import guard_disk

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.config import ModelConfig

SIDECARS = ("reasoning_token_map.json",)
"""Files of Covey's beside the weights, which belong to a model for as long as it is not folded."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """A model that is loaded to be written somewhere else."""

    model: Any
    """With adapters, where it has any: they are not merged yet."""
    tokenizer: PreTrainedTokenizerBase
    dtype: str
    """The number type that its weights were saved in."""
    sidecars: tuple[Path, ...] = ()
    """Further files that belong to it."""


def load_whole(model: ModelConfig, source: str, adapter: Path | None) -> WholeModel:
    """Load weights, adapters and the tokenizer that was saved with them.

    With adapters the weights are loaded in float32, in which the two are added up. Quantised training leaves adapters
    for the weights as they were before; those are loaded.

    Args:
        model: how it is loaded: `revision` (of a model on the hub) and `trust_remote_code`.
        source: what `from_pretrained` takes.
        adapter: a folder with adapters that go on top.

    Raises:
        ModelError: something of it cannot be loaded.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    found = {"revision": model.revision or "main", "trust_remote_code": model.trust_remote_code}
    place = adapter or Path(source)
    tokenizer_at = str(place) if (place / "tokenizer_config.json").is_file() else source
    try:
        stored = AutoConfig.from_pretrained(source, **found).dtype
        dtype = str(stored or "float32").removeprefix("torch.")
        with quiet_weights():
            loaded = AutoModelForCausalLM.from_pretrained(source, dtype="float32" if adapter else "auto", **found)
            if adapter is not None:
                from peft import PeftModel

                loaded = PeftModel.from_pretrained(loaded, str(adapter))
        trusts = model.trust_remote_code and not is_widened(tokenizer_at)
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_at, **{**found, "trust_remote_code": trusts})
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{place} cannot be loaded: {' '.join(str(error).split())}") from error
    places = [folder / name for name in SIDECARS for folder in (place, Path(source))]  # of adapters: else from below
    sidecars = {path.name: path for path in reversed(places) if path.is_file()}
    return WholeModel(loaded, tokenizer, dtype, tuple(sidecars.values()))


def export_model(found: WholeModel, out: Path, *, dtype: str | None = None, overwrite: bool = False) -> None:
    """Write a model and its tokenizer into a folder of their own, whole or not at all.

    Adapters are added to the weights they belong to in the number type that these have in memory, and only the sum is
    brought to `dtype`. The generation config names every token that ends an answer, and the one that pads.

    Args:
        found: what is written; its model is changed.
        out: the folder.
        dtype: number type of the weights on the disk; None takes the one that they were saved in.
        overwrite: whether a folder with something in it may be replaced.

    Raises:
        ModelError: the folder is not empty, or the merged weights are not finite.
    """
    check_target(out, overwrite=overwrite)
    import torch

    model, tokenizer = found.model, found.tokenizer
    if hasattr(model, "merge_and_unload"):
        model = merge(model)
    model = model.to(getattr(torch, dtype or found.dtype))
    settle_tokens(model, tokenizer)
    with _written_beside(out) as beside:
        with quiet_weights():
            model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        for file in found.sidecars:
            shutil.copy(file, beside)


def copy_adapters(folder: Path, out: Path, base: str, *, overwrite: bool = False) -> None:
    """Copy adapters and their tokenizer, without what belongs to the training, and name the model they belong to.

    Args:
        folder: with `adapter_config.json`: a run's final model, or a checkpoint.
        out: the folder that is written.
        base: the name or folder of the model below, as it is to be written down.
        overwrite: whether a folder with something in it may be replaced.

    Raises:
        ModelError: the folder is not empty.
    """
    check_target(out, overwrite=overwrite)
    described = json.loads((folder / "adapter_config.json").read_bytes())
    described["base_model_name_or_path"] = base
    with _written_beside(out) as beside:
        beside.mkdir(parents=True)
        for file in sorted(folder.iterdir()):
            if file.is_file() and (file.name.startswith(_OF_ADAPTERS) or file.name in SIDECARS):
                shutil.copy(file, beside)
        (beside / "adapter_config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", "utf-8")


def check_target(out: Path, *, overwrite: bool) -> None:
    """Check that a folder may be written, before anything is loaded.

    Raises:
        ModelError: it is a file, or has something in it and may not be replaced.
    """
    if out.is_file():
        raise ModelError(f"{out} is a file. Name a folder for the model.")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise ModelError(f"{out} is not empty. Name another folder, or replace it with --overwrite.")


_OF_ADAPTERS = ("adapter_", "tokenizer", "special_tokens", "chat_template", "vocab", "merges", "added_tokens")


@contextmanager
def _written_beside(out: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of `out` when all is written."""
    beside = out.with_name(f"{out.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.parent.mkdir(parents=True, exist_ok=True)
    with guard_disk(out.name, out.parent):
        yield beside
        if out.exists():
            shutil.rmtree(out)
        beside.rename(out)


def settle_tokens(model: Any, tokenizer: Any) -> None:
    """Let the generation config of a model that is to be saved name every token that ends an answer, and the one that
    pads."""
    ends = all_eos_ids(model, tokenizer)
    generation = model.generation_config
    generation.eos_token_id = ends[0] if len(ends) == 1 else ends
    generation.pad_token_id = tokenizer.pad_token_id
    model.config.pad_token_id = tokenizer.pad_token_id
    # The settings of greedy decoding would be refused on saving beside a temperature that some models ship with.
    if generation.temperature not in (None, 1.0) or generation.top_p not in (None, 1.0):
        generation.do_sample = True
