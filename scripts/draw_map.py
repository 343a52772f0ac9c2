"""Draw the map of the sources, layers and packages with their subpackages: docs/images/map.svg.

Run it when a package is added, removed or changes its purpose: `python scripts/draw_map.py`. Names and purposes are
read from the source tree (the first sentence of each `__init__`), layers from the table that the architecture test
enforces.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from html import escape
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from architecture import LAYERS, ONLY_IN, WITHOUT_TORCH, imports  # noqa: E402

WIDTH, LEFT, GAP, PAD = 800, 40, 8, 10
LETTER = 6.8
"""Pixels of a small letter, in a wide font."""
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.bold{font-weight:600}.small{font-size:12px;fill:#57606a}"
    ".light{fill:#4c72b022;stroke:#4c72b0}.heavy{fill:#dd845222;stroke:#dd8452}"
    ".middle{text-anchor:middle}.part{fill:#ffffff;stroke:#8c959f}.line{stroke:#8c959f;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9da7b3}.part{fill:#161b22;stroke:#6e7681}}"
)


def purpose(path: Path, name: str) -> str:
    """The first sentence of a module's docstring, without a leading name."""
    first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    sentence = re.split(r"\.(?:\s|$)", " ".join(first.split()))[0].replace("`", "")
    head, colon, rest = sentence.partition(": ")
    return rest[:1].upper() + rest[1:] if colon and head.lower() == name else sentence


def parts(folder: Path) -> list[tuple[str, str]]:
    """The packages inside a package, to any depth, with their purposes."""
    found = sorted(path.parent for path in folder.rglob("*/__init__.py"))
    return [(path.relative_to(folder).as_posix(), purpose(path / "__init__.py", path.name)) for path in found]


class Box:
    """One package: its name, what it is for, and the packages in it."""

    def __init__(self, package: Path, name: str) -> None:
        self.folder = folder = package / name
        file = folder / "__init__.py" if folder.is_dir() else package / f"{name}.py"
        self.name, self.label = name, "import covey" if name == "__init__" else name + "/" * folder.is_dir()
        self.kind = "light" if name in WITHOUT_TORCH or name == "__init__" else "heavy"
        self.purpose = purpose(file, "covey" if name == "__init__" else name)
        self.parts = parts(folder) if folder.is_dir() else []

    def lay_out(self, width: float) -> None:
        """Break the purpose and the parts into lines of a box of this width."""
        self.width = width
        self.lines = textwrap.wrap(self.purpose, int((width - 2 * PAD) / LETTER), break_on_hyphens=False)
        self.rows: list[list[tuple[str, str, float]]] = [[]]
        room = width - 2 * PAD
        for path, text in self.parts:
            found = {
                one.module.split(".")[0] for file in (self.folder / path).rglob("*.py") for one in imports(file, ())
            }
            only = sorted(found & ONLY_IN.keys())
            label = f"{path} · imports {' and '.join(only)}" if only else path
            size = len(label) * LETTER + 20
            if self.rows[-1] and room < size:
                self.rows.append([])
                room = width - 2 * PAD
            self.rows[-1].append((label, text, size))
            room -= size + 5
        self.height = 28 + 16 * len(self.lines) + 25 * len([row for row in self.rows if row]) + 4

    def draw(self, x: float, y: float, height: float) -> list[str]:
        drawn = [f'<rect x="{x:g}" y="{y:g}" width="{self.width:g}" height="{height:g}" rx="5" class="{self.kind}"/>']
        drawn.append(text(self.label, x + PAD, y + 20, "bold"))
        drawn += [text(line, x + PAD, y + 37 + 16 * place, "small") for place, line in enumerate(self.lines)]
        top = y + 29 + 16 * len(self.lines)
        for row in self.rows:
            left = x + PAD
            for label, purpose, size in row:
                drawn.append(
                    f'<g><title>{escape(purpose)}</title><rect x="{left:g}" y="{top:g}" width="{size:g}" height="20" '
                    f'rx="10" class="part"/>{text(label, left + size / 2, top + 14, "small middle")}</g>'
                )
                left += size + 5
            top += 25
        return drawn


def text(words: str, x: float, y: float, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def drawing(package: Path) -> str:
    """The whole picture."""
    there = [
        name
        for name in LAYERS
        if name not in ("__main__", "_version")
        and ((package / f"{name}.py").is_file() or (package / name / "__init__.py").is_file())
    ]
    drawn: list[str] = []
    y = 8.0
    for layer, names in groupby(sorted(there, key=lambda name: -LAYERS[name]), key=LAYERS.__getitem__):
        number = str(layer) if layer < LAYERS["__init__"] else ""
        boxes = [Box(package, name) for name in names]
        shares = [2 + len(box.parts) for box in boxes]
        room = WIDTH - LEFT - 4 - GAP * (len(boxes) - 1)
        least = min(room / len(boxes), 220)
        spare = room - least * len(boxes)
        for box, share in zip(boxes, shares, strict=True):
            box.lay_out(int(least + spare * share / sum(shares)))
        height = max(box.height for box in boxes)
        drawn.append(text(number, 12, y + 20, "bold"))
        x: float = LEFT
        for box in boxes:
            drawn += box.draw(x, y, height)
            x += box.width + GAP
        y += height + GAP
    drawn.append(f'<path d="M30 10V{y - 10:g}m-4 -7l4 7l4 -7" class="line"/>')
    y += 12
    drawn.append(text("Imports between packages point down: from a layer to those below it.", LEFT, y, "small"))
    y += 12
    for x, kind, words in ((LEFT, "light", "never imports PyTorch"), (LEFT + 190, "heavy", "may import PyTorch")):
        drawn.append(f'<rect x="{x}" y="{y:g}" width="14" height="14" rx="3" class="{kind}"/>')
        drawn.append(text(words, x + 20, y + 12, "small"))
    height = round(y + 24)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="The layers and packages of Covey">\n<style>{STYLE}</style>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "map.svg"
    target.write_text(drawing(ROOT / "src" / "covey"), encoding="utf-8")
