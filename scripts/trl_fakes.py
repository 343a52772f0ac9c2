"""Placeholders for the tiny models and the dataset that TRL's own tests load from the hub, and a pytest plugin with
them.

Made by `scripts/trl_suite.py` before it runs those tests: small models of random weights, in folders laid out as the
hub's cache, so that loading a model by name finds them. There are two such folders: a test that names token ids of
Qwen's, or relies on completions without EOS, gets models with a vocabulary of Qwen's size; the others get much faster
ones. The prompts are lines of the Zen of Python, which ships with Python.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import inspect
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

ORGANISATION = "trl-internal-testing"
COMMIT = "0" * 40
CLASS, SPEED, EPOCHS, OUTCOMES = (f"COVEY_TRL_SUITE_{name}" for name in ("CLASS", "SPEED", "EPOCHS", "OUTCOMES"))
"""Environment variables with the plugin's settings: `stock` or `covey`; `on` or `off`; a number; the file to write."""

CACHE, SMALL, FULL = "hub", "hub-small", "hub-full"
"""In HF_HOME: the cache is a link to one of the two folders of models."""

ENDINGS = [4, 2, 3, 1, 4, 3, 1, 4, 3, 3, 2, 6, 6, 4, 4, 5, 5, 4, 3]
"""How many words of each line are the prompt; TRL's tests expect the first twelve prompts to end there."""

PIECES = {
    330: ' "',
    497: '",',
    606: "name",
    788: '":',
    894: " any",
    944: "'t",
    1414: " know",
    1513: " don",
    4913: '{"',
    5212: ' {"',
    5392: " tool",
    7692: "async",
    11248: "}}\n",
    16370: "arguments",
    17453: "Done",
    22785: "_tool",
    64648: "multiply",
    93054: "_multiply",
}
"""Tokens of Qwen's that the tests on tools put into a completion by their ids."""

SPECIAL = {
    151643: "<|endoftext|>",
    151644: "<|im_start|>",
    151645: "<|im_end|>",
    151657: "<tool_call>",
    151658: "</tool_call>",
    151665: "<tool_response>",
    151666: "</tool_response>",
    151667: "<think>",
    151668: "</think>",
    151669: "<|finetune_right_pad_id|>",
}
SIZES = {SMALL: 1024, FULL: max(SPECIAL) + 1}

# name: configuration class of transformers, model class, chat template of TRL, more of the configuration
MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "tiny-Qwen2ForCausalLM-2.5": ("Qwen2Config", "Qwen2ForCausalLM", "qwen2_5", {}),
    "tiny-Qwen2ForSequenceClassification-2.5": ("Qwen2Config", "Qwen2ForSequenceClassification", "qwen2_5", {}),
    "tiny-Qwen3ForCausalLM": ("Qwen3Config", "Qwen3ForCausalLM", "qwen3", {"head_dim": 4}),
    "tiny-Qwen3ForSequenceClassification": ("Qwen3Config", "Qwen3ForSequenceClassification", "qwen3", {"head_dim": 4}),
    "tiny-Qwen3MoeForCausalLM": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        "qwen3",
        {"head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "tiny-Gemma2ForCausalLM": ("Gemma2Config", "Gemma2ForCausalLM", "gemma", {"head_dim": 4}),
    "tiny-LlamaForSequenceClassification-3.2": ("LlamaConfig", "LlamaForSequenceClassification", "llama3_2", {}),
}


def make_models(home: Path) -> None:
    """Write all models, in both sizes, into a folder that can be HF_HOME."""
    for name, size in SIZES.items():
        _make_models(home / name, size)
    use(home, SMALL)


def use(home: Path, folder: str) -> None:
    """Make one of the two folders the hub's cache."""
    link = home / CACHE
    link.unlink(missing_ok=True)
    link.symlink_to(folder, target_is_directory=True)


def _make_models(cache: Path, size: int) -> None:
    import torch
    import transformers

    tokenizer = make_tokenizer(size)
    for seed, (name, (config_class, model_class, template, more)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        config = getattr(transformers, config_class)(
            vocab_size=size,
            hidden_size=8,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings="Gemma" in name,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            **({"num_labels": 1} if "Classification" in name else {}),
            **more,
        )
        folder = cache / f"models--{ORGANISATION}--{name}"
        snapshot = folder / "snapshots" / COMMIT
        getattr(transformers, model_class)(config).save_pretrained(snapshot)
        tokenizer.chat_template = _template(template)
        tokenizer.save_pretrained(snapshot)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(COMMIT, encoding="ascii")


def make_tokenizer(size: int) -> Any:
    """Bytes, Qwen's special tokens, the few strings above, and made-up words for all other ids.

    In the full size, tokens of Qwen's have Qwen's ids; in a smaller one, the special tokens are the last.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # The order of bytes that GPT-2 and Qwen share: the printable ones first. Ids 0 to 255.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (ord(c) >= 256, ord(c)))
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    taken = {index: _visible(text) for index, text in PIECES.items()} | SPECIAL
    if size < max(SPECIAL):
        taken = dict(enumerate(SPECIAL.values(), start=size - len(SPECIAL)))
    for index in range(len(alphabet), size):
        vocabulary[taken.get(index, f"Ġw{index}")] = index
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    plain = [text for text in SPECIAL.values() if not text.startswith("<|")]
    backend.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL.values() if t not in plain])
    backend.add_tokens([AddedToken(t, special=False) for t in plain])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )


def _visible(text: str) -> str:
    """As byte-level tokenizers write blanks and line ends."""
    return text.replace(" ", "Ġ").replace("\n", "Ċ")


def _template(name: str) -> str:
    return (importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def zen(configuration: str) -> Any:
    """The dataset, with the splits `train` and `test`."""
    from datasets import Dataset, DatasetDict

    with contextlib.redirect_stdout(io.StringIO()):
        import this
    lines = "".join(this.d.get(c, c) for c in this.s).splitlines()[2:]
    prompts = [" ".join(line.split()[:count]) for line, count in zip(lines, ENDINGS, strict=True)]
    if configuration == "standard_prompt_only":
        column: list[Any] = prompts
    elif configuration == "conversational_prompt_only":
        column = [[{"role": "user", "content": f"What comes after: {prompt}"}] for prompt in prompts]
    else:
        pytest.skip(f"no placeholder for the dataset's configuration {configuration}")
    return DatasetDict(
        {"train": Dataset.from_dict({"prompt": column[:17]}), "test": Dataset.from_dict({"prompt": column[17:]})}
    )


def load_dataset(name: str, configuration: str | None = None, split: str | None = None, **_: Any) -> Any:
    """Replaces `datasets.load_dataset`; a dataset without a placeholder skips the test."""
    if name != f"{ORGANISATION}/zen" or configuration is None:
        pytest.skip(f"no placeholder for the dataset {name}")
    splits = zen(configuration)
    return splits if split is None else splits[split]


# -- The plugin

_outcomes: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Before TRL's tests are imported: the dataset, the CPU, and the class under test."""
    import datasets
    import trl
    import trl.trainer.grpo_trainer

    datasets.load_dataset = load_dataset
    _set_defaults(trl.GRPOConfig)
    if os.environ[CLASS] == "covey":
        trl.GRPOTrainer = _covey(os.environ[SPEED] == "on")


def _set_defaults(config_class: Any) -> None:
    """The number of epochs; and, where there is no GPU, the CPU and no bfloat16, in which TRL trains otherwise."""
    import torch

    defaults: dict[str, Any] = {"num_train_epochs": float(os.environ[EPOCHS])}
    if not torch.cuda.is_available():
        defaults |= {"use_cpu": True, "bf16": False}
    made = config_class.__init__

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **{**defaults, **kwargs})

    config_class.__init__ = make


def _covey(speed: bool) -> Any:
    import covey
    from covey.config import SpeedConfig

    if speed:
        return covey.GRPOTrainer
    off = SpeedConfig(shared_prefill=False, shared_scoring=False, trim=False, skip_zero=False)

    class Plain(covey.GRPOTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{"speed": off, **kwargs})

    return Plain


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Which models the test gets: with a small vocabulary, a random model soon samples EOS by chance."""
    source = inspect.getsource(item.function)  # type: ignore[attr-defined]
    full = "mask_truncated_completions" in source or any(str(index) in source for index in SPECIAL)
    use(Path(os.environ["HF_HOME"]), FULL if full else SMALL)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of each test: the first phase that did not pass counts."""
    if report.outcome != "passed" or report.when == "call":
        _outcomes.setdefault(report.nodeid, report.outcome)
        if report.outcome == "failed":
            _outcomes[report.nodeid] = "failed"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the outcomes."""
    Path(os.environ[OUTCOMES]).write_text(json.dumps(_outcomes), encoding="utf-8")
