"""Write the table of recipes into recipes/README.md, from the comment at the top of every recipe.

Run it after adding a recipe or changing its header: `python scripts/recipes_table.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
README = RECIPES / "README.md"
BEGIN, END = "<!-- made by scripts/recipes_table.py: begin -->", "<!-- end -->"
FIELDS = REQUIRED = ("hardware", "processes", "time", "command")

_FIELD = re.compile(r"(\w+): (.+)")


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a recipe's header comment."""

    path: Path
    """Relative to `recipes/`."""
    about: str
    """What it trains."""
    values: dict[str, str]
    """The lines `# field: value`; an indented line continues the one before."""

    @property
    def processes(self) -> int:
        """Training processes that its batch is meant for."""
        return int(self.values["processes"])


def recipes(folder: Path = RECIPES) -> list[Path]:
    """Every recipe, sorted, without the accelerate configs."""
    return sorted(path for path in folder.glob("*/*/*.yaml") if path.parts[-3] != "accelerate")


def read_header(path: Path) -> Header:
    """Read the comment at the top of a recipe.

    Raises:
        ValueError: it does not state what it trains, or a field is missing or unknown.
    """
    about: list[str] = []
    values: dict[str, str] = {}
    last = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.removeprefix("#").removeprefix(" ")
        found = _FIELD.fullmatch(text)
        if found and found[1] in FIELDS:
            last = found[1]
            values[last] = found[2]
        elif text.startswith(" ") and last:
            values[last] += f" {text.strip()}"
        elif text and last:
            raise ValueError(f"{path}: `{line}` is neither a field ({', '.join(FIELDS)}) nor the rest of one")
        elif text:
            about.append(text)
    missing = [name for name in REQUIRED if name not in values]
    if missing or not about:
        raise ValueError(f"{path}: its header lacks {', '.join(missing) or 'what it trains'}")
    return Header(path.relative_to(RECIPES), " ".join(about), values)


def table() -> str:
    """The recipes as a Markdown table, in the order of their paths."""
    rows = ["| recipe | what it trains | hardware | time |", "|---|---|---|---|"]
    for header in map(read_header, recipes()):
        name = header.path.as_posix()
        rows.append(f"| [{name}]({name}) | {header.about} | {header.values['hardware']} | {header.values['time']} |")
    return "\n".join(rows)


def with_table(text: str) -> str:
    """The page with its table updated."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README} has no place for the table: it needs the lines `{BEGIN}` and `{END}`")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> None:
    """Write the table where it belongs."""
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
