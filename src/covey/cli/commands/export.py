"""`covey export`: a run, a checkpoint or adapters as a model folder that other tools load."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.evaluation.stored import Target

DTYPES = ("float32", "bfloat16", "float16")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "export",
        help="write a model as a plain folder",
        description=(
            "Write the final model of a run, one of its checkpoints, or adapters with the model they belong to into "
            "FOLDER: full weights, tokenizer, chat template and generation config, and for a run a model card. "
            "transformers, vLLM and other tools load it."
        ),
    )
    parser.add_argument("model", metavar="RUN|CHECKPOINT|MODEL", help="what is exported")
    parser.add_argument("folder", metavar="FOLDER", help="where it is written")
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of the weights; by default the model's own")
    parser.add_argument("--adapters", action="store_true", help="write the adapters alone, not merged into the model")
    parser.add_argument(
        "--fold", action="store_true", help="remove a reasoning vocabulary, keeping ordinary tokens as trained"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is in FOLDER")
    parser.add_argument("--checkpoint", metavar="WHICH", help="of a run: final (the default), best, or a step")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.evaluation.stored import find_target
    from covey.model.export import check_target, copy_adapters

    out = Path(arguments.folder).expanduser()
    target = find_target(arguments.model, arguments.checkpoint)
    check_target(out, overwrite=arguments.overwrite)
    if arguments.adapters and target.adapter is None:
        raise ConfigError(f"{arguments.model} has no adapters of its own: leave out --adapters.")
    if arguments.adapters and (arguments.dtype or arguments.fold):
        raise ConfigError("--adapters copies the adapters as they are: leave out --dtype and --fold.")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if arguments.adapters and target.adapter is not None:
        copy_adapters(target.adapter, out, target.source, overwrite=arguments.overwrite)
    else:
        _export(target, out, arguments)
    if target.run is not None:
        from covey.report.model_card import write_model_card

        write_model_card(target.run, out, state=target.state)
    print(out)
    return 0


def _export(target: Target, out: Path, arguments: argparse.Namespace) -> None:
    from covey.config import compose
    from covey.model.export import export_model, load_whole

    config = compose(target.words(), target.recipe).config
    found = load_whole(config.model, target.source, target.adapter)
    if not arguments.fold:
        export_model(found, out, dtype=arguments.dtype, overwrite=arguments.overwrite)
        return
    from covey.model.reasoning_vocab.expansion import fold

    whole = out.with_name(f"{out.name}.unfolded")
    export_model(found, whole, dtype=arguments.dtype, overwrite=True)
    try:
        fold(whole, out)
    finally:
        shutil.rmtree(whole)
