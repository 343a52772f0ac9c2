"""`covey vocab`: what a run has learnt with its reasoning vocabulary."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.json_output import add_json, print_json
from covey.errors import ModelError
from covey.model.reasoning_vocab import MAP_FILE

if TYPE_CHECKING:
    from covey.config import Config
    from covey.evaluation.job import Progress
    from covey.evaluation.stored import Target
    from covey.model.reasoning_vocab import ReasoningVocabulary
    from covey.model.reasoning_vocab.tokenizer import Reader
    from covey.report.load import RunRecord

EXAMPLES = 12
"""Completions shown as examples."""
FIGURES = ("problems", "first", "second", "difference", "low", "high", "p_value")
"""Of a `Comparison`: `first` is the folded model, `second` the model as it is."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "vocab",
        help="what a run has learnt with its reasoning vocabulary",
        description=(
            "Analyse the reasoning tokens of a run: their share of the thinking, which are used most, how far the rows "
            "of each have moved since the start of training and from the token that it was copied from, which ordinary "
            "tokens are nearest now, and examples in context. Writes vocabulary.html, vocabulary.csv and "
            "vocabulary.json into the run directory."
        ),
    )
    parser.add_argument("run_dir", metavar="RUN", help="run directory: output_dir/run_name")
    parser.add_argument(
        "--checkpoint", metavar="STEP", help="best, or the number of a step; the final model by default"
    )
    parser.add_argument("--top", metavar="N", type=int, default=10, help="rows of the printed table (10)")
    parser.add_argument(
        "--fold-gap",
        action="store_true",
        help="evaluate the model with its reasoning tokens and without them (folded back), and compare the two",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the output, in place of the run directory")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.report.load import load_run

    folder = Path(arguments.run_dir)
    record = load_run(folder)
    from covey.cli.config_arguments import make_console, sampling_progress
    from covey.config import compose
    from covey.evaluation.stored import find_target
    from covey.report.page import write_vocabulary
    from covey.runlog.completions import read_completions

    target = find_target(str(folder), arguments.checkpoint)
    console = make_console(stderr=arguments.as_json)
    with console.status("Loading the model …"):
        from covey.evaluation.run import load_policy
        from covey.model.reasoning_vocab.tokenizer import Reader
        from covey.model.reasoning_vocab.vocabulary import vocabulary_of

        config = compose(target.words(), target.recipe).config
        model = load_policy(config, target)
    vocabulary = vocabulary_of(model)
    if vocabulary is None:
        raise ModelError(
            f"The model of {folder} has no reasoning vocabulary: train with model.reasoning_vocab_size above 0 first."
        )
    completions = read_completions(record.run.completions) if record.run.completions.is_dir() else []
    reader = Reader(vocabulary.map, vocabulary.token_bytes)
    found = analyse(model, vocabulary, completions, reader, start=_start(record, vocabulary))
    if arguments.fold_gap:
        with sampling_progress(console) as show:
            found["fold_gap"] = fold_gap(config, target, show, model)
    out = Path(arguments.out) if arguments.out else folder
    out.mkdir(parents=True, exist_ok=True)
    page = write_vocabulary(record, found, out)
    if arguments.as_json:
        print_json({"page": page, **found})
        return 0
    _print(console, found, arguments.top)
    console.print(str(page), markup=False, highlight=False, soft_wrap=True)
    return 0


def _start(record: RunRecord, vocabulary: ReasoningVocabulary) -> Any:
    """The model before training; None if the run does not have it, with a line on the terminal's error output."""
    from transformers import AutoModelForCausalLM

    from covey.model.weight_files import quiet_weights

    first = record.run.checkpoint(0)
    if not (first / MAP_FILE).is_file():
        print(f"{first} is not there: how far rows have moved since the start is left out.", file=sys.stderr)
        return None
    with quiet_weights():
        return AutoModelForCausalLM.from_pretrained(str(first))


def analyse(
    model: Any,
    vocabulary: ReasoningVocabulary,
    completions: Sequence[Mapping[str, Any]],
    reader: Reader,
    *,
    start: Any = None,
) -> dict[str, Any]:
    """The analysis: `tokens`, `counts` and `examples`, see `covey.report.page`.

    Args:
        model: the trained model.
        vocabulary: its reasoning vocabulary.
        completions: of the run, with their token ids where recorded.
        reader: reads tokens of the vocabulary.
        start: the model before training, if it is there.
    """
    from covey.model.reasoning_vocab.expansion import drift
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
            "cosine_start_embedding": one.start_embedding,
            "cosine_start_head": one.start_head,
            "nearest": [{"text": reader.text_of(token), "cosine": cosine} for token, cosine in one.nearest],
        }
        for one in drift(model, vocabulary, usable, start=start)
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


def fold_gap(config: Config, target: Target, progress: Progress, model: Any = None) -> dict[str, dict[str, Any]]:
    """The accuracy with the reasoning tokens less that after folding them back, by held-out set.

    The share of reasoning tokens among the thinking tokens says nothing: it stays as at random where copies mean the
    same as their base tokens. Both models answer the same problems, by `evaluation.*`; the results are stored as those
    of `covey eval`.

    Args:
        config: of the run, with `model.name` as `target.source`.
        target: the model with its reasoning vocabulary.
        progress: see `run_evaluations`.
        model: the target's model, if it is loaded already.

    Returns:
        For each set the `metric`, the `FIGURES` of the paired comparison, and these in words, as `text`.

    Raises:
        CoveyError: the model cannot be folded, or not evaluated.
    """
    from covey.evaluation.comparison import compare_evaluations, metric_of
    from covey.evaluation.figures import paired_text
    from covey.evaluation.job import run_evaluations
    from covey.evaluation.stored import Target
    from covey.model.reasoning_vocab.expansion import fold
    from covey.runlog.directory import temporary_folder

    with temporary_folder("covey-fold-") as folder:
        source = folder / "folded"
        fold(target.adapter or target.source, source)
        folded = Target(f"{target.label} (folded)", str(source), None, target.run, f"{target.state}-folded")
        of_folded = replace(config, model=replace(config.model, name=str(source)))
        without = run_evaluations(of_folded, folded, {}, None, progress)
    own = run_evaluations(config, target, {}, None, progress, model)
    found = {}
    for before, after in zip(without, own, strict=True):
        compared, metric = compare_evaluations(before, after), metric_of(after)
        figures = {name: getattr(compared, name) for name in FIGURES}
        found[str(after.settings["name"])] = {"metric": metric, "text": paired_text(compared, metric), **figures}
    return found


def _examples(kept: Sequence[Mapping[str, Any]], reader: Reader, first: int) -> list[dict[str, Any]]:
    """Completions with reasoning tokens from the whole run, newest last."""
    from covey.rewards.reward import last_user_message
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

    from covey.report.page import by_movement, gap_lines, movement

    for name, value in found["counts"].items():
        console.print(f"{name}: {value}", markup=False, highlight=False)
    for line in gap_lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    used = by_movement(found["tokens"])
    if not used:
        return
    table = Table("token, used ones by movement", "copy", "uses", "cosine to its start", "to its base", "nearest now")
    for row in used[:top]:
        near = ", ".join(repr(one["text"]) for one in row["nearest"])
        cosines = ("–" if one is None else f"{one:.4f}" for one in (movement(row), row["cosine_embedding"]))
        table.add_row(repr(row["text"]), str(row["copy"]), str(row["uses"]), *cosines, near)
    console.print(table)
