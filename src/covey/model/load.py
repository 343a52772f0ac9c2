"""Finding, checking and loading a model and its tokenizer, with actionable errors."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.advice import command
from covey.config.values import BadKeyError
from covey.config.vllm import is_elsewhere, tensor_parallel_sizes
from covey.errors import ConfigError, ModelError, one_line
from covey.hub import KAGGLE, check_connection_once, download_model, model_handle
from covey.model.adapters import lora_config
from covey.model.starter import STARTERS
from covey.model.weight_files import WHOLE, check_weights, read_header, shapes_of

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

    from covey.config import Config, LoraConfig, ModelConfig


def resolve_model(name: str) -> str:
    """Resolve `name` to a folder or hub id for `from_pretrained`.

    `starter` and `starter_agent` are the shipped models; `kaggle://…` is downloaded, once. A name that is an existing
    folder, or can only be a path, must hold a model.

    Raises:
        ModelError: for a folder without a model in it, a path that does not exist, a download that fails.
    """
    if name in STARTERS:
        folder = STARTERS[name]
    elif name.startswith(KAGGLE):
        folder = download_model(name)
    else:
        folder = Path(name).expanduser()
        _refuse_gguf(name, folder)
        if not folder.exists():
            starts_like_path = name.startswith((".", "/", "~", "\\")) or name.endswith(("/", ".gguf"))
            if not starts_like_path and name.count("/") <= 1 and "\\" not in name:
                check_connection_once()
                return name
            raise ModelError(
                f"model.name={name} is a path, and there is nothing at {folder.resolve()}. Give the folder of a saved "
                "model (it holds config.json and *.safetensors), a model's hub id (owner/name), or starter."
            )
    _check_folder(name, folder)
    return str(folder)


def _refuse_gguf(name: str, path: Path) -> None:
    """Raise a `ModelError` for a GGUF file, a folder that holds no other weights, or a repository named so."""
    source, file = str(path), "FILE.gguf"
    if path.is_dir():
        file = min((one.name for one in path.glob("*.gguf")), default="")
        if not file or any((*path.glob("*.safetensors"), *path.glob("*.bin"))):
            return
    elif name.endswith(".gguf") and (path.is_file() or (name.count("/") == 2 and name[0] not in "./~")):
        source, file = str(path.parent), path.name
    elif path.exists() or not name.lower().endswith("-gguf"):
        return
    out = "CONVERTED" if file == "FILE.gguf" else Path(file).stem
    code = (
        "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T, GgufConfig as G; "
        f"source, file, out = {source!r}, {file!r}, {out!r}; "
        "M.from_pretrained(source, gguf_file=file, quantization_config=G(dequantize=True)).save_pretrained(out); "
        "T.from_pretrained(source, gguf_file=file).save_pretrained(out)"
    )
    raise ModelError(
        f"model.name={name} is GGUF, a format for inference, which is not trained. Take the model that it was made of "
        "(on the hub, mostly the name without -GGUF), or convert the file, whose weights stay rounded: "
        f"`{shlex.join([sys.executable, '-m', 'pip', 'install', 'gguf'])}`, then "
        f"`{shlex.join([sys.executable, '-c', code])}`, and set model.name={out}."
    )


def read_model_config(name: str, revision: str | None = None) -> dict[str, Any]:
    """A model's `config.json`, with the values of its `text_config`, read without transformers; empty where neither a
    folder nor the hub's cache has it, or it is damaged, of which the run says more as it starts."""
    try:
        folder = STARTERS.get(name) or Path(name).expanduser()
        file: Any = folder / "config.json"
        if not folder.is_dir():
            from huggingface_hub import try_to_load_from_cache

            file = try_to_load_from_cache(name, "config.json", revision=revision)
        found = json.loads(Path(file).read_bytes())
        found = {key: one for key, one in {**found, **(found.get("text_config") or {})}.items() if one is not None}
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError):  # such as a name that is no hub id
        return {}
    return {"num_key_value_heads": found.get("num_attention_heads", 0), "tie_word_embeddings": True, **found}


def tensor_parallel_choices(config: Config, gpus: int) -> list[int]:
    """The powers of two that vLLM may take as `training.vllm_tensor_parallel_size` of a server on so many GPUs."""
    model = read_model_config(config.launch.vllm_model or config.model.name, config.model.revision)
    return [n for n in tensor_parallel_sizes(model) or range(1, gpus + 1) if n <= gpus and n.bit_count() == 1]


def check_tensor_parallel(config: Config) -> list[str]:
    """Raise a `BadKeyError` where vLLM cannot split the model so; returns a note where that is not known."""
    training, serves = config.training, config.training.vllm_mode == "server"
    size, key = int(training.vllm_tensor_parallel_size), "training.vllm_tensor_parallel_size"
    if not training.use_vllm or size == 1 or (serves and is_elsewhere(config)):
        return []
    name = (serves and config.launch.vllm_model) or config.model.name
    model = read_model_config(name, config.model.revision)
    if (legal := tensor_parallel_sizes(model)) is None:
        why = "its attention is of another kind (MLA, a hybrid)" if model else "its config.json cannot be read here"
        return [f"Whether vLLM can split {name} by {key}={size} is not known: {why}."]
    if size not in legal:
        heads, shared = model["num_attention_heads"], model["num_key_value_heads"]
        raise BadKeyError(
            key,
            f"={size} is refused by vLLM, which splits the {heads} attention heads, {shared} key-value heads and "
            f"padded vocabulary of {name} evenly. Legal sizes: {', '.join(map(str, legal))}.",
        )
    return []


def check_name(name: str) -> None:
    """Check a model's name as far as possible without a network; raises what `resolve_model` does."""
    if name.startswith(KAGGLE):
        model_handle(name)
    else:
        resolve_model(name)


def check_files(name: str) -> str:
    """Resolve a name, and check the weights of a folder by their headers, without PyTorch. Raises what `resolve_model`
    does, and a `ModelError` if a file of the weights is missing or damaged."""
    source = resolve_model(name)
    if Path(source).is_dir():
        check_weights(Path(source), f"model.name={name}")
    return source


def has_reasoning_tokens(source: str) -> bool:
    """Whether a folder's tokenizer has reasoning tokens. It then needs no remote code, whatever its `auto_map` says."""
    return (Path(source) / "reasoning_token_map.json").is_file()


def source_options(model: ModelConfig) -> dict[str, Any]:
    """Options of `from_pretrained` besides the name, for configs, tokenizers and weights alike."""
    return {"revision": model.revision or "main", "trust_remote_code": model.trust_remote_code}


def load_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer, padding on the left, with `model.chat_template` if one is given. Raises a `ModelError`
    when it cannot be loaded, or has no chat template and none is given."""
    from transformers import AutoTokenizer

    source = resolve_model(model.name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source,
            revision=model.revision or "main",
            trust_remote_code=model.trust_remote_code and not has_reasoning_tokens(source),
            padding_side="left",
            truncation_side="left",
        )
    except Exception as error:  # every kind of tokenizer raises its own for a damaged file
        raise ModelError(_cannot_load("tokenizer", model.name, source, error)) from error
    if model.chat_template is not None:
        tokenizer.chat_template = chat_template(model.chat_template)
    if tokenizer.chat_template is None:
        raise ModelError(
            f"The tokenizer of model.name={model.name} has no chat template, so conversations cannot be rendered: it "
            "is probably a base model. Choose an instruction-tuned model, or give one with model.chat_template (a "
            "Jinja template, or a file that holds one)."
        )
    if tokenizer.pad_token is None:
        # End of sequence is the last choice: other tools that read the saved tokenizer mask padding by its id, and so
        # the end that the model is to learn.
        ends = {tokenizer.eos_token_id, *declared_eos_ids(model)}
        known = tokenizer.get_vocab()
        free = [token for token in _PADS if token in known and known[token] not in ends]
        tokenizer.pad_token = free[0] if free else tokenizer.eos_token
    return tokenizer


_PADS = ("<pad>", "<|pad|>", "[PAD]", "<PAD>", "<|padding|>", "<|finetune_right_pad_id|>", "<|endoftext|>", "<unk>")
"""Usual names of the padding token, in order of preference; the last two are fallbacks."""


def declared_eos_ids(model: ModelConfig) -> list[int]:
    """End-of-sequence ids of the model's own generation config; empty without one."""
    found = own_generation_config(model)
    ends = None if found is None else found.eos_token_id
    return [ends] if isinstance(ends, int) else list(ends or [])


def all_eos_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """All end-of-sequence ids: the tokenizer's first, then those that the loaded model declares."""
    declared = getattr(model.generation_config, "eos_token_id", None)
    ids = [tokenizer.eos_token_id, *([declared] if isinstance(declared, int) else declared or [])]
    return list(dict.fromkeys(one for one in ids if one is not None))


def own_generation_config(model: ModelConfig) -> GenerationConfig | None:
    """The model's `generation_config.json`; None if it has none, or it cannot be reached."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(resolve_model(model.name), revision=model.revision or "main")
    except (OSError, ValueError):
        return None


OWN_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def own_sampling(model: ModelConfig, *, required: bool = True) -> dict[str, float]:
    """The sampling settings of the model's own generation config, by TRL's names; unset ones are left out. Raises a
    `ModelError` if it has none although they are required."""
    found = own_generation_config(model)
    settings = {} if found is None else found.to_diff_dict()
    values = {name: settings[name] for name in OWN_SAMPLING if settings.get(name) is not None}
    if required and not values:
        raise ModelError(
            f"model.use_generation_config=true, but the model {model.name} has no generation_config.json that says how "
            f"to sample ({', '.join(OWN_SAMPLING)}). Set it to false, and training.temperature and its like by hand."
        )
    return values


def check_model(model: ModelConfig) -> str:
    """Check early that the model can be found and, in a folder, read, and return its folder or hub id. Raises a
    `ModelError` when its configuration or its weights cannot be read."""
    from transformers import AutoConfig

    source = check_files(model.name)
    try:
        AutoConfig.from_pretrained(source, **source_options(model))
    except Exception as error:  # of any type, where config.json holds something else
        raise ModelError(_cannot_load("model", model.name, source, error)) from error
    return source


def vocab_size_of(model: ModelConfig) -> int:
    """Rows of the model's embedding, which may be more than its tokenizer's tokens."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(resolve_model(model.name), **source_options(model))
    return int(config.get_text_config().vocab_size)


def _check_folder(name: str, folder: Path) -> None:
    if not folder.is_dir():
        raise ModelError(
            f"model.name={name} is a file. Give the folder that holds the model's config.json and weights."
        )
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ModelError(
            f"model.name={name} is a folder of adapters, not of a model. To continue training them: "
            f"model.name={_base_of(folder)} model.lora.path={name}. To merge the two: "
            f"{command('export {adapters} FOLDER', adapters=name)}."
        )
    if not (folder / "config.json").is_file():
        held = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        inner = next((p.parent for p in sorted(folder.glob("*/config.json"))), None)
        hint = f" Did you mean {inner}?" if inner else ""
        raise ModelError(
            f"model.name={name} is a folder without a model: it has no config.json (it holds {held}).{hint} Give the "
            "folder of a saved model, a model's hub id (owner/name), or starter."
        )
    if not any((folder / f"{weights}{index}").is_file() for weights in WHOLE for index in ("", ".index.json")):
        check_weights(folder, f"model.name={name}")  # there are none


def _base_of(adapters: Path) -> str:
    try:
        found = json.loads((adapters / "adapter_config.json").read_bytes())["base_model_name_or_path"]
        return str(found or "THEIR MODEL")
    except (ValueError, KeyError, TypeError):  # damaged
        return "THEIR MODEL"


def chat_template(value: str, key: str = "model.chat_template") -> str:
    looks_inline = "{" in value or "\n" in value
    if looks_inline:
        return value
    file = Path(value).expanduser()
    if not file.is_file():
        raise ModelError(f"{key}={value} is neither a Jinja template (it has no {{% … %}}) nor a file that exists.")
    text = file.read_text(encoding="utf-8")
    if "{%" not in text and "{{" not in text:  # it would be saved with every tokenizer, whatever it is
        raise ModelError(f"{key}={value}: this file holds no Jinja template (it has no {{% … %}}).")
    return text


def _cannot_load(what: str, name: str, source: str, error: Exception) -> str:
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if not Path(source).is_dir():
        return (
            f"model.name={name} cannot be loaded: there is no such folder here, and the hub gave no such model: "
            f"{cause[:300].rstrip('.')}. Check the name, the revision and the network (gated models need a login), or "
            "give the folder of a model saved here."
        )
    advice = "One of its files may be damaged, a Git LFS pointer, or of a newer version: copy or download it again."
    return f"The {what} of model.name={name} cannot be loaded from {source}: {cause[:300].rstrip('.')}. {advice}"


def check_architecture(model: ModelConfig, source: str) -> None:
    """Check what `from_pretrained` and peft would reject.

    Args:
        model: how it is loaded.
        source: folder or hub id, from `check_model`.

    Raises:
        ModelError: the config describes no model, or another one than the weights or the adapters are of.
        ConfigError: the attention or the layers for adapters are not this model's.
    """
    import transformers
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, **source_options(model))
    if not config.architectures:  # TRL takes the class from it
        raise ModelError(
            f"The config.json of model.name={model.name} names no architecture: add the name of the model's class in "
            'transformers, such as "architectures": ["Qwen3ForCausalLM"].'
        )
    kind = getattr(transformers, config.architectures[0], None)
    if kind is None and model.trust_remote_code and getattr(config, "auto_map", None):
        return
    if kind is None:
        raise ModelError(
            f"The config.json of model.name={model.name} names the architecture {config.architectures[0]}, which "
            "transformers does not have. If the model brings its own code, set model.trust_remote_code=true."
        )
    empty = _empty(model, kind, config)
    if not hasattr(config, "quantization_config"):  # quantised weights are packed
        _check_shapes(model, empty, shapes_of(Path(source)))
    if model.lora.active:
        _check_adapters(model.lora, empty)


def _empty(model: ModelConfig, kind: Any, config: Any) -> Any:
    from covey.model.device import on_meta

    attention = model.attn_implementation
    options = {} if attention is None or "/" in attention else {"attn_implementation": attention}
    try:
        with on_meta():
            return kind._from_config(config, **options)
    except (ValueError, ImportError) as error:
        if not options:
            raise _no_model(model, error) from error
        raise ConfigError(
            f"model.attn_implementation={attention} cannot be used with model.name={model.name}: {one_line(error)} "
            "Set model.attn_implementation=sdpa, or leave it out."
        ) from error
    except Exception as error:  # any, where config.json holds impossible sizes
        raise _no_model(model, error) from error


def _no_model(model: ModelConfig, error: Exception) -> ModelError:
    return ModelError(
        f"No model can be made from the config.json of model.name={model.name}: {one_line(error)} Take the file that "
        "was saved with the weights."
    )


def _check_shapes(model: ModelConfig, empty: Any, stored: Mapping[str, tuple[int, ...]]) -> None:
    """Compare embeddings and linear layers; others may be stored in another layout than they have in the model."""
    from torch import nn

    for name, module in empty.named_modules():
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        made = tuple(module.weight.shape)
        if stored.get(f"{name}.weight", made) != made:
            raise ModelError(
                f"The weights of model.name={model.name} are not those of its config.json: {name}.weight has the shape "
                f"{list(stored[f'{name}.weight'])} in the file, and the config makes it {list(made)}. Take the "
                "config.json that was saved with the weights."
            )


def _check_adapters(lora: LoraConfig, empty: Any) -> None:
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict

    folder = None if lora.path is None else Path(lora.path).expanduser()
    try:
        config: Any = lora_config(lora) if folder is None else PeftConfig.from_pretrained(str(folder))
        config.use_dora = False  # its norms would need weights
        config.base_model_name_or_path = None  # another name of the model would be a warning
        adapted: Any = get_peft_model(empty, config)
    except (RuntimeError, NotImplementedError):
        return  # an initialisation that needs weights
    except (ValueError, TypeError, KeyError) as error:
        if folder is not None:
            raise _unfit(lora, one_line(error)) from error
        raise ConfigError(f"model.lora does not fit this model: {one_line(error)}") from error
    file = None if folder is None else folder / "adapter_model.safetensors"
    stored = {} if file is None or not file.is_file() else read_header(file)
    for name, tensor in get_peft_model_state_dict(adapted, save_embedding_layers=False).items():
        shape = stored.get(name, tuple(tensor.shape))
        if shape != tuple(tensor.shape):
            raise _unfit(lora, f"{name} has the shape {list(shape)} there, and {list(tensor.shape)} here.")


def _unfit(lora: LoraConfig, why: str) -> ModelError:
    return ModelError(f"The adapters in model.lora.path={lora.path} do not fit this model: {why}")
