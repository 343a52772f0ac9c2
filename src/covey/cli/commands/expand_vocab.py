"""`covey expand-vocab`: write a model with a reasoning vocabulary, before any training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from covey.errors import ConfigError
from covey.model.reasoning_vocab import STARTS


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "expand-vocab",
        help="add a reasoning vocabulary to a model",
        description=(
            "Write a model with further tokens for thinking into FOLDER, as training with model.reasoning_vocab_size "
            "does by itself (checkpoint-0). For a separate vLLM server, or for other tools: train and serve it with "
            "model.name=FOLDER and model.reasoning_vocab_size=0."
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a name on the hub, a folder, or starter")
    parser.add_argument("folder", metavar="FOLDER", help="where it is written")
    parser.add_argument("--size", default="full", metavar="N", help="how many tokens; full: one for each token")
    parser.add_argument("--token-ids", metavar="IDS", help="which tokens are copied: 0-9999, 5,7,9 or a file of ids")
    parser.add_argument(
        "--start", choices=STARTS, default="copy", help="initial probability of the copies; noise: on their rows too"
    )
    parser.add_argument(
        "--noise", metavar="SHARE", type=float, default=0.3, help="norm of the noise, as a share of a row's norm (0.3)"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the noise (0)")
    parser.add_argument("--think-tag", default="think", metavar="NAME", help="think stands for <think> and </think>")
    parser.add_argument("--answer-tag", default="answer", metavar="NAME", help="tags of the answer get no usable copy")
    parser.add_argument("--revision", default="main", help="branch, tag or commit of a model on the hub")
    parser.add_argument("--trust-remote-code", action="store_true", help="let the model run its own Python code")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.noise <= 10:
        raise ConfigError(f"--noise {arguments.noise:g} is not possible: it must be above 0, and at most 10.")
    size = arguments.size if arguments.size == "full" else _number(arguments.size)
    out = Path(arguments.folder).expanduser()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already. Give another folder, or empty this one.")
    from covey.config.values import check_tags

    check_tags({"--think-tag": arguments.think_tag, "--answer-tag": arguments.answer_tag})
    from covey.model.load import resolve_model
    from covey.model.reasoning_vocab.expansion import expand
    from covey.runlog.files import guard_disk, rename

    source = resolve_model(arguments.model)
    partial = out.with_name(f"{out.name}.part")
    with guard_disk(out.name, out.absolute().parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        vocabulary = expand(
            source,
            partial,
            size,
            token_ids=arguments.token_ids,
            start=arguments.start,
            noise=arguments.noise,
            seed=arguments.seed,
            think_tag=arguments.think_tag,
            answer_tag=arguments.answer_tag,
            revision=arguments.revision,
            trust_remote_code=arguments.trust_remote_code,
        )
        if out.exists():
            out.rmdir()
        rename(partial, out)
    usable = vocabulary.map.size - len(vocabulary.map.unusable)
    print(f"{vocabulary.map.size} reasoning tokens, {usable} of them usable: {out}")
    return 0


def _number(word: str) -> int:
    if not word.isdecimal() or int(word) == 0:
        raise ConfigError(f"--size {word} is not possible: it must be a number of tokens above 0, or full.")
    return int(word)
