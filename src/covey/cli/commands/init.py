"""`covey init`: look at rows of one's own, and write a recipe for them."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

from covey.advice import command
from covey.cli import config_arguments
from covey.config.compose import flags
from covey.config.groups.dataset import without_suffix
from covey.config.keys import GROUPS
from covey.errors import ConfigError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "init",
        help="write a recipe for rows of your own",
        description="Look at a file or folder of rows, and write a commented recipe for them; where no rule can check "
        "the answers, also a reward to start from. Nothing is overwritten.",
    )
    parser.usage = "covey init [options] ROWS [key=value …]"
    parser.epilog = "Keys go into the recipe: dataset.prompt_column=NAME, dataset.test_path=FILE, …"
    parser.add_argument("--model", metavar="NAME", help="the model: a folder, a name on the hub, or starter")
    parser.add_argument("--out", metavar="RECIPE", help="the recipe; by default named like the rows, here")
    parser.set_defaults(run=run, words=())


def run(arguments: argparse.Namespace) -> int:
    words = flags.split(arguments.words)
    options = [word for word in words.overrides if str(word).lstrip("+~").partition("=")[0] in GROUPS]
    if words.recipe is None or options:
        what = f"takes no groups, as in {options[0]}" if options else "needs rows"
        raise ConfigError(f"covey init {what}: give it one file or folder of rows, and keys such as seed=1.")
    out = Path(arguments.out or f"{without_suffix(words.recipe)}.yaml")
    stub = out.with_name(f"{out.stem}_reward.py")
    if there := next((path for path in (out, stub) if path.exists()), None):
        raise ConfigError(f"{there} is there already, and is not overwritten: name another recipe with --out.")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = config_arguments.make_console()
    with console.status("Looking at the rows …"):
        from rich.panel import Panel
        from rich.text import Text

        from covey.cli.commands.doctor import show_findings
        from covey.config import compose
        from covey.config.named_code import STUB
        from covey.errors import one_line
        from covey.runlog.files import write_atomically
        from covey.training.checks.findings import Mark
        from covey.training.doctor import examine
        from covey.training.proposal import propose

        found = propose(words.recipe, arguments.model, words.overrides)
    for what, text in found.facts.items():
        console.print(Text(f"{what:8} {text}"), soft_wrap=True)
    for text, answer in found.shown:
        shown = Text(text.strip("\n") if len(text) <= 1200 else f"{text[:900]}\n[…]\n{text[-300:]}")
        title = "a prompt, as the model will see it" + (f"; its answer: {one_line(answer, 40)}" if answer else "")
        console.print(Panel(shown, title=Text(title), title_align="left", width=min(console.width, 120)))
    out.parent.mkdir(parents=True, exist_ok=True)
    written = f"Written: {out}"
    if found.needs_reward:
        shutil.copyfile(STUB, stub)
        why = f"no rule can check such answers ({found.facts['answers']})"
        if found.no_answers:
            why = "no column has a usual name for answers. Where one holds them: dataset.answer_column=NAME. Else"
        written += f", and {stub}: {why}, so the reward is yours. Change it to what you want"
    write_atomically(out, found.recipe(stub if found.needs_reward else None))
    if found.needs_model:
        written += f". No --model was given: {found.keys['model.name']} is a proposal, 1 GB from the hub"
    console.print(Text(f"{written}. The doctor's verdict:"), soft_wrap=True)
    composed = compose(recipe=out)
    with console.status("Checking the recipe …"):
        findings = list(examine(composed.config, naming_places=composed.naming_places))
    show_findings(console, findings, fine=False)
    train = command("train {config}", config=out)
    when = ", once what is wrong is mended" if any(finding.mark is Mark.WRONG for finding in findings) else ""
    console.print(Text(f"Next{when}:\n  {train}\n  covey view  # beside it: curves and completions"), soft_wrap=True)
    return 0
