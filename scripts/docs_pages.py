"""Write the documentation pages that are generated from the repository: the commands, the keys, the rewards, the
recipes, the benchmarks, the studies, how to contribute and what changed.

`docs/conf.py` calls this before every build; the pages go to `docs/generated/`, which git ignores.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from covey.cli.config_arguments import OVERRIDES
from covey.cli.main import parsers
from covey.config import document, known_keys
from covey.config.keys import GROUPS
from covey.rewards import get_reward
from covey.rewards.registry import ALIASES, REGISTRY

GENERATED = Path("docs", "generated")

PAGES = {
    "recipes/README.md": "recipes.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/first_run.md": "first_run.md",
    "benchmarks/first_agent.md": "first_agent.md",
    "benchmarks/first_defaults.md": "first_defaults.md",
    "benchmarks/first_real_model.md": "first_real_model.md",
    "benchmarks/grading.md": "grading_benchmark.md",
    "benchmarks/grading_corpora.md": "grading_corpora.md",
    "benchmarks/grading_fuzz.md": "grading_fuzz.md",
    "benchmarks/grading_hacks.md": "grading_hacks.md",
    "benchmarks/intervals.md": "intervals.md",
    "studies/maxent/README.md": "maxent_study.md",
    "benchmarks/step.md": "step_benchmark.md",
    "benchmarks/async.md": "async_benchmark.md",
    "benchmarks/servers.md": "servers_benchmark.md",
    "benchmarks/view_search.md": "view_search.md",
    "benchmarks/reasoning_mask.md": "reasoning_mask.md",
    "studies/maxent/results.md": "maxent_results.md",
    "studies/exploration/README.md": "exploration_study.md",
    "studies/exploration/preregistration.md": "exploration_preregistration.md",
    "studies/exploration/results.md": "exploration_results.md",
    "studies/reasoning_vocabulary/README.md": "reasoning_study.md",
    "studies/reasoning_vocabulary/results.md": "reasoning_results.md",
    "studies/reasoning_vocabulary/positive_control.md": "reasoning_positive_control.md",
    "studies/tuning/README.md": "tuning_study.md",
    "studies/tuning/results.md": "tuning_results.md",
}
"""Files outside of `docs/` that become pages, and their names there."""

_LINK = re.compile(r"(!?\[[^\]\n]*(?:\n[^\]\n]*)?\]\()([^)\s#]+)(#[^)\s]*)?\)")
_REWARDS = """# The rewards that come with Covey

Listed in `rewards.funcs`, weighted by `training.reward_weights`. Their parameters are `rewards.*` ([all
keys](keys.md)); [how answers are graded](../grading.md) describes parsing and comparing. [Custom
rewards](../custom_rewards.md) are listed in the same place.

"""
_COMMANDS = f"""# All commands

`covey COMMAND --help` prints the same in a terminal, and `covey completion SHELL` makes the shell complete it
([installing](../installing.md#shell-completion)). Commands that show tables print JSON with `--json`. Some take

```text
{OVERRIDES}```

"""
_INTRO = """# All keys

Every key, its type, its default and what it does. `covey config --doc KEY` prints the same in a terminal. Where a group
has options (`objective=maxent`), the chosen option may set another default.

"""


def write_all(root: Path) -> None:
    """Write every page, and delete those that are no longer made."""
    folder = root / GENERATED
    folder.mkdir(parents=True, exist_ok=True)
    made = {"commands.md": commands_page(), "keys.md": keys_page(), "rewards.md": rewards_page()}
    for source, name in PAGES.items():
        if (root / source).is_file():
            made[name] = titled(moved(root, root / source, folder), root / source)
    for path in folder.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:  # an old time lets Sphinx skip the page
            path.write_text(text, encoding="utf-8")


def commands_page() -> str:
    """The reference of all commands and their options, from the parsers."""
    return _COMMANDS + "".join(_command(parsers()[0], 1))


def _command(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """The sections of the commands below a parser."""
    for commands in (action for action in parser._actions if isinstance(action, argparse._SubParsersAction)):
        for command in commands.choices.values():
            formatter = argparse.HelpFormatter(command.prog, width=88)
            formatter.add_usage(command.usage, command._actions, command._mutually_exclusive_groups)
            usage = formatter.format_help().strip().removeprefix("usage: ")
            yield f"#{'#' * level} `{command.prog}`\n\n{_text(command.description or '')}\n\n```text\n{usage}\n```\n\n"
            for action in command._actions:
                if action.help not in (None, argparse.SUPPRESS) and not isinstance(action, argparse._HelpAction):
                    name = formatter._format_action_invocation(action)
                    yield f"`{name}`\n: {_text(formatter._expand_help(action))}\n\n"
            yield from _command(command, level + 1)


def keys_page() -> str:
    """The reference of all keys, from the schema and the snapshot of TRL's fields."""
    parts = [_INTRO]
    for group in ("", *GROUPS):
        keys = [key for key in known_keys() if key.rpartition(".")[0] == group and key not in GROUPS]
        if not keys:
            continue
        parts.append(f"## `{group}.*`\n\n{_text(document(group).doc)}\n\n" if group else "## Top level\n\n")
        parts += [_entry(key) for key in keys]
    return "".join(parts)


def rewards_page() -> str:
    """What every built-in reward computes, from its docstring."""
    parts = [_REWARDS]
    for name in REGISTRY:
        also = [alias for alias, of in ALIASES.items() if of == name]
        text = inspect.cleandoc(get_reward(name).__doc__ or "").partition("\nArgs:")[0].rstrip()
        more = f"\n\nAlso known as {', '.join(f'`{alias}`' for alias in also)}." if also else ""
        parts.append(f"## `{name}`\n\n{text}{more}\n\n")
    return "".join(parts)


def _entry(key: str) -> str:
    found = document(key)
    default = found.default
    shown = "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
    shown = "[]" if default == () else shown.replace("`", "'").replace("\n", " ")
    if len(shown) > 80:
        shown = shown[:77] + "…"
    kind = found.type.replace("`", "'")
    return f"`{key}`\n: {_text(found.doc)}\n  *{_text(kind)}*; default `{shown or 'empty'}`\n\n"


def _text(text: str) -> str:
    """A docstring on one line; what Markdown would read as markup stays text."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]$|])", r"\\\1", part) for part in parts)


def titled(text: str, source: Path) -> str:
    """Give the tables of a study, which have no heading or a generic one, that of the study's README."""
    readme = source.parent / "README.md"
    body = text.removeprefix("# Results\n").lstrip("\n")
    if body.startswith("# ") or not readme.is_file():
        return text
    heading = readme.read_text(encoding="utf-8").partition("\n")[0]
    return f"{heading}: the figures\n\n{body}"


def moved(root: Path, source: Path, folder: Path) -> str:
    """A page from elsewhere, with its links adapted to its new place."""

    def link(found: re.Match[str]) -> str:
        start, target, anchor = found[1], found[2], found[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        aim = (source.parent / target).resolve()
        inside = aim.relative_to(root).as_posix() if aim.is_relative_to(root) else ""
        if inside in PAGES:
            return f"{start}{PAGES[inside]}{anchor})"
        if aim.is_dir():
            return found[0].partition("](")[0].lstrip("!").lstrip("[")
        return f"{start}{os.path.relpath(aim, folder)}{anchor})"

    return _LINK.sub(link, source.read_text(encoding="utf-8"))


def pointed(root: Path, text: str, page: Path) -> str:
    """A page of `docs/`, with links to files that became pages pointing to those."""

    def link(found: re.Match[str]) -> str:
        aim = (page.parent / found[2]).resolve()
        inside = aim.relative_to(root).as_posix() if aim.is_relative_to(root) else ""
        if inside not in PAGES:
            return found[0]
        made = os.path.relpath(root / GENERATED / PAGES[inside], page.parent)
        return f"{found[1]}{made}{found[3] or ''})"

    return _LINK.sub(link, text)


if __name__ == "__main__":
    write_all(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
