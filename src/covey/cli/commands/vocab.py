"""`covey vocab`: what a run has learnt with its reasoning vocabulary."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ModelError

if TYPE_CHECKING:
    from covey.model.reasoning_vocab import ReasoningVocabulary
    from covey.model.reasoning_vocab.decoding import Reader

EXAMPLES = 12
"""Completions shown as examples."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "vocab",
        help="what a run has learnt with its reasoning vocabulary",
        description=(
            "Analyse the reasoning tokens of a run: their share of the thinking, which are used most, how far each has "
            "drifted from the token that it was copied from, which ordinary tokens are nearest now, and examples in "
            "context. Writes vocabulary.html, vocabulary.csv and vocabulary.json into the run directory."
        ),
    )
    parser.add_argument("run_dir", metavar="RUN", help="run directory: output_dir/run_name")
    parser.add_argument(
        "--checkpoint", metavar="STEP", help="best, or the number of a step; the final model by default"
    )
    parser.add_argument("--top", metavar="N", type=int, default=10, help="rows of the printed table (10)")
    parser.add_argument("--out", metavar="DIR", help="folder for the output, in place of the run directory")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.report.load import load_run

    folder = Path(arguments.run_dir)
    record = load_run(folder)
    from covey.cli.config_arguments import make_console
    from covey.config import Flag, compose
    from covey.evaluation.target import find_target
    from covey.report.vocabulary import write_vocabulary
    from covey.runlog.completions import read_completions

    target = find_target(str(folder), arguments.checkpoint)
    console = make_console()
    with console.status("Loading the model …"):
        from covey.evaluation.job import load_policy
        from covey.model.reasoning_vocab.decoding import Reader
        from covey.model.reasoning_vocab.vocabulary import vocabulary_of

        config = compose([Flag("model.name", (target.source,))], target.run).config
        model = load_policy(config, target)
    vocabulary = vocabulary_of(model)
    if vocabulary is None:
        raise ModelError(
            f"The model of {folder} has no reasoning vocabulary: train with model.reasoning_vocab_size above 0 first."
        )
    completions = read_completions(record.run.completions) if record.run.completions.is_dir() else []
    found = analyse(model, vocabulary, completions, Reader(vocabulary.map, vocabulary.token_bytes))
    out = Path(arguments.out) if arguments.out else folder
    out.mkdir(parents=True, exist_ok=True)
    page = write_vocabulary(record, found, out)
    _print(console, found, arguments.top)
    console.print(str(page), markup=False, highlight=False, soft_wrap=True)
    return 0


def analyse(
    model: Any, vocabulary: ReasoningVocabulary, completions: Sequence[Mapping[str, Any]], reader: Reader
) -> dict[str, Any]:
    """The analysis: `tokens`, `counts` and `examples`, see `covey.report.vocabulary`.

    Args:
        model: the trained model.
        vocabulary: its reasoning vocabulary.
        completions: of the run, with their token ids where recorded.
        reader: reads tokens of the vocabulary.
    """
    from covey.model.reasoning_vocab.drift import drift
    from covey.runlog import names

    first = vocabulary.map.base_vocab_size
    kept = [row for row in completions if row.get(names.COLUMN_IDS) is not None]
    uses = Counter(token for row in kept for token in row[names.COLUMN_IDS] if token >= first)
    total = sum(uses.values())
    usable = [token for token in range(first, vocabulary.map.vocab_size) if token not in vocabulary.map.unusable]
    tokens: list[dict[str, Any]] = [
        {
            "id": one.token,
            "base_id": vocabulary.map.base_of(one.token),
            "text": reader.text_of(one.token),
            "copy": reader.multiplicity(one.token),
            "uses": uses[one.token],
            "share": uses[one.token] / total if total else 0.0,
            "cosine_embedding": one.embedding,
            "cosine_head": one.head,
            "nearest": [{"text": reader.text_of(token), "cosine": cosine} for token, cosine in one.nearest],
        }
        for one in drift(model, vocabulary, usable)
    ]
    mean = sum(row["cosine_embedding"] for row in tokens) / max(len(tokens), 1)
    counts = {
        "reasoning tokens": f"{vocabulary.map.size:,}, {len(usable):,} of them usable",
        "used": f"{len(uses):,} different ones, {total:,} times in {len(kept):,} completions",
        "start": vocabulary.map.start,
        "mean cosine to base": f"{mean:.4f}",
        "tags": f"{vocabulary.map.open_tag} {vocabulary.map.close_tag}",
    }
    return {"counts": counts, "tokens": tokens, "examples": _examples(kept, reader, first)}


def _examples(kept: Sequence[Mapping[str, Any]], reader: Reader, first: int) -> list[dict[str, Any]]:
    """Completions with reasoning tokens from the whole run, newest last."""
    from covey.evaluation.completions.graded import last_user_message
    from covey.runlog import names

    with_some = [row for row in kept if max(row[names.COLUMN_IDS], default=0) >= first]
    count = min(EXAMPLES, len(with_some))
    places = [round(place * (len(with_some) - 1) / max(count - 1, 1)) for place in range(count)]
    return [
        {
            "step": row[names.STEP],
            "prompt": last_user_message(row[names.COLUMN_PROMPT]),
            "pieces": reader.read(row[names.COLUMN_IDS]).runs(),
        }
        for row in (with_some[place] for place in places)
    ]


def _print(console: Any, found: Mapping[str, Any], top: int) -> None:
    from rich.table import Table

    for name, value in found["counts"].items():
        console.print(f"{name}: {value}", markup=False, highlight=False)
    used = sorted((row for row in found["tokens"] if row["uses"]), key=lambda row: -row["uses"])
    if not used:
        return
    table = Table("token", "copy", "uses", "cosine: embedding", "head", "nearest now")
    for row in used[:top]:
        near = ", ".join(repr(one["text"]) for one in row["nearest"])
        cosines = (f"{row['cosine_embedding']:.4f}", f"{row['cosine_head']:.4f}")
        table.add_row(repr(row["text"]), str(row["copy"]), str(row["uses"]), *cosines, near)
    console.print(table)
