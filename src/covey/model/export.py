"""Exporting a model as a plain folder that `from_pretrained`, vLLM and other tools read: merged weights and tokenizer,
without training state."""

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
from covey.model.load import all_eos_ids, has_reasoning_tokens, resolve_model, source_options
from covey.model.weight_files import quiet_weights
from covey.runlog.files import guard_disk, rename

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.config import ModelConfig


SIDECARS = ("reasoning_token_map.json",)
"""Covey's own files next to the weights, which belong to a model until it is folded."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """A loaded model, ready for export."""

    model: Any
    """Adapters, if any, are not merged yet."""
    tokenizer: PreTrainedTokenizerBase
    dtype: str
    """The dtype that its weights were saved in."""
    sidecars: tuple[Path, ...] = ()
    """Further files of the model."""


def load_whole(model: ModelConfig, source: str, adapter: Path | None) -> WholeModel:
    """Load weights, adapters and the tokenizer that was saved with them.

    With adapters the weights are loaded in float32, for merging. Adapters of quantised training belong to the
    unquantised weights, which are loaded.

    Args:
        model: `revision` (of a hub model) and `trust_remote_code`.
        source: as `resolve_model` takes it.
        adapter: a folder with adapters of it.

    Raises:
        ModelError: the model, its adapters or its tokenizer cannot be loaded.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    found, source = source_options(model), resolve_model(source)
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
        trusts = model.trust_remote_code and not has_reasoning_tokens(tokenizer_at)
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_at, **{**found, "trust_remote_code": trusts})
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{place} cannot be loaded: {' '.join(str(error).split())}") from error
    places = [folder / name for name in SIDECARS for folder in (place, Path(source))]
    # Files of the adapters come before those of the base model.
    sidecars = {path.name: path for path in reversed(places) if path.is_file()}
    return WholeModel(loaded, tokenizer, dtype, tuple(sidecars.values()))


def export_model(found: WholeModel, out: Path, *, dtype: str | None = None, overwrite: bool = False) -> None:
    """Write a model and its tokenizer into a folder of their own, atomically.

    Adapters are merged in the dtype that the weights have in memory, before the conversion to `dtype`. The generation
    config gets all end-of-sequence ids and the padding id.

    Args:
        found: the model to write; it is changed.
        out: the folder.
        dtype: of the weights on disk; None keeps the one that they were saved in.
        overwrite: whether a folder that is not empty may be replaced.

    Raises:
        ModelError: the folder is not empty, or the merged weights are not finite.
    """
    check_target(out, overwrite=overwrite)
    import torch

    model, tokenizer = found.model, found.tokenizer
    if hasattr(model, "merge_and_unload"):
        model = merge(model)
    model = model.to(getattr(torch, dtype or found.dtype))
    set_end_and_pad_tokens(model, tokenizer)
    with _atomic_folder(out) as temporary:
        with quiet_weights():
            model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for file in found.sidecars:
            shutil.copy(file, temporary)


def copy_adapters(folder: Path, out: Path, base: str, *, overwrite: bool = False) -> None:
    """Copy adapters and their tokenizer from a run's final model or a checkpoint, without training state, and set the
    name or folder of their base model. Raises a `ModelError` if `out` is not empty."""
    check_target(out, overwrite=overwrite)
    described = json.loads((folder / "adapter_config.json").read_bytes())
    described["base_model_name_or_path"] = base
    with _atomic_folder(out) as temporary:
        temporary.mkdir(parents=True)
        for file in sorted(folder.iterdir()):
            if file.is_file() and (file.name.startswith(_ADAPTER_FILES) or file.name in SIDECARS):
                shutil.copy(file, temporary)
        (temporary / "adapter_config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", "utf-8")


def check_target(out: Path, *, overwrite: bool) -> None:
    """Raise a `ModelError` if a folder is a file, or holds files and may not be replaced; loads nothing."""
    if out.is_file():
        raise ModelError(f"{out} is a file. Name a folder for the model.")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise ModelError(f"{out} is not empty. Name another folder, or replace it with --overwrite.")


_ADAPTER_FILES = ("adapter_", "tokenizer", "special_tokens", "chat_template", "vocab", "merges", "added_tokens")


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """A temporary folder next to `out`, renamed to it at the end."""
    temporary = out.with_name(f"{out.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    with guard_disk(out.name, out.parent):
        yield temporary
        if out.exists():
            shutil.rmtree(out)
        rename(temporary, out)


def set_end_and_pad_tokens(model: Any, tokenizer: Any) -> None:
    """Set all end-of-sequence ids and the padding id in the generation config of a model that is to be saved."""
    ends = all_eos_ids(model, tokenizer)
    generation = model.generation_config
    generation.eos_token_id = ends[0] if len(ends) == 1 else ends
    generation.pad_token_id = tokenizer.pad_token_id
    model.config.pad_token_id = tokenizer.pad_token_id
    # Some models ship with a temperature, which saving refuses together with greedy decoding.
    if generation.temperature not in (None, 1.0) or generation.top_p not in (None, 1.0):
        generation.do_sample = True
