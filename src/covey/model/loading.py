"""Finding a model and its tokenizer, with errors that a person can act on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from covey.errors import ModelError
from covey.model.starter import STARTER_NAME, STARTER_PATH

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.config import ModelConfig

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json")


def resolve_model(name: str) -> str:
    """What `from_pretrained` takes for `name`: a folder, or a hub id.

    `starter` is the shipped model. A name that is a folder here, or that can only be a path, must hold a model.

    Raises:
        ModelError: for a folder without a model in it, or a path that does not exist.
    """
    if name == STARTER_NAME:
        folder = STARTER_PATH
    else:
        folder = Path(name).expanduser()
        if not folder.exists():
            if _can_be_hub_id(name):
                return name
            raise ModelError(
                f"model.name={name} is a path, and there is nothing at {folder.resolve()}. Give the folder of a saved "
                "model (it holds config.json and *.safetensors), a model's hub id (owner/name), or starter."
            )
    _check_folder(name, folder)
    return str(folder)


def load_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer, padding on the left, with `model.chat_template` in place where one is given.

    Raises:
        ModelError: when it cannot be loaded, or has no chat template and none is given.
    """
    from transformers import AutoTokenizer

    source = resolve_model(model.name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source,
            revision=model.revision or "main",
            trust_remote_code=model.trust_remote_code,
            padding_side="left",
            truncation_side="left",
        )
    except (OSError, ValueError) as error:
        raise ModelError(_cannot_load("tokenizer", model.name, source, error)) from error
    if model.chat_template is not None:
        tokenizer.chat_template = _chat_template(model.chat_template)
    if tokenizer.chat_template is None:
        raise ModelError(
            f"The tokenizer of model.name={model.name} has no chat template, so conversations cannot be rendered: it "
            "is probably a base model. Choose an instruction-tuned model, or give one with model.chat_template (a "
            "Jinja template, or a file that holds one)."
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_model(model: ModelConfig) -> str:
    """Check that the model can be found before anything heavy happens, and return what `from_pretrained` takes.

    Raises:
        ModelError: when its configuration cannot be read.
    """
    from transformers import AutoConfig

    source = resolve_model(model.name)
    try:
        AutoConfig.from_pretrained(source, revision=model.revision or "main", trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelError(_cannot_load("model", model.name, source, error)) from error
    return source


def _can_be_hub_id(name: str) -> bool:
    starts_like_path = name.startswith((".", "/", "~", "\\")) or name.endswith("/")
    return not starts_like_path and name.count("/") <= 1 and "\\" not in name


def _check_folder(name: str, folder: Path) -> None:
    if not folder.is_dir():
        raise ModelError(
            f"model.name={name} is a file. Give the folder that holds the model's config.json and weights."
        )
    if not (folder / "config.json").is_file():
        held = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        inner = next((p.parent for p in sorted(folder.glob("*/config.json"))), None)
        hint = f" Did you mean {inner}?" if inner else ""
        raise ModelError(
            f"model.name={name} is a folder without a model: it has no config.json (it holds {held}).{hint} Give the "
            "folder of a saved model, a model's hub id (owner/name), or starter."
        )
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        raise ModelError(
            f"model.name={name} is a folder with a config.json but no weights (*.safetensors). If saving was cut "
            "short, take an earlier checkpoint."
        )


def _chat_template(value: str) -> str:
    looks_inline = "{" in value or "\n" in value
    if looks_inline:
        return value
    file = Path(value).expanduser()
    if not file.is_file():
        raise ModelError(
            f"model.chat_template={value} is neither a Jinja template (it has no {{% … %}}) nor a file that exists."
        )
    return file.read_text(encoding="utf-8")


def _cannot_load(what: str, name: str, source: str, error: Exception) -> str:
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return (
        f"The {what} of model.name={name} cannot be loaded from {source}: {cause.rstrip('.')}. Check the name, the "
        "revision and the network (gated models need a login), or give the folder of a model saved here."
    )
