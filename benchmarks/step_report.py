"""The whole table of `benchmarks/step.py`: every shape, group size and model size, and the curves.

    python benchmarks/step_report.py [--steps 5] [--only 5m-256+512 ...] [--list] [--again] [--gpu]

Writes `benchmarks/step.md` and `docs/images/step_cost.svg`. Takes an hour or two on two cores, with nothing else on the
machine. Each cell's figures are kept in the folder `out/step` (`--output`); a cell that is there already, with
the same settings, is not measured again, so a report that was stopped resumes.
"""

from __future__ import annotations

import argparse
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from side_by_side.cells import GPU, all_cells
from side_by_side.measuring import measure
from side_by_side.page import page
from side_by_side.plots import draw

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "step.md"
PICTURE = ROOT / "docs" / "images" / "step_cost.svg"


def main() -> None:
    arguments = parse()
    cells = all_cells(arguments.steps, arguments.seed)
    chosen = [
        cell
        for cell in cells
        if (arguments.gpu or cell.tables != (GPU,))
        and (arguments.only is None or any(cell.name.startswith(start) for start in arguments.only))
    ]
    if arguments.list:
        print("\n".join(f"{cell.name}  ({', '.join(cell.tables)})" for cell in chosen))
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    if find_spec("flash_attn") is None and any(cell.setting.attention for cell in chosen):
        print("flash-attn is not installed: TRL is not measured with it.")
        chosen = [cell for cell in chosen if cell.setting.attention is None]
    for number, cell in enumerate(chosen, start=1):
        path = arguments.output / f"{cell.name}.json"
        if not arguments.again and measured(path) == json.loads(cell.setting.to_json()):
            continue
        print(f"{number}/{len(chosen)}: {cell.name}", flush=True)
        result = measure(cell.setting, say=lambda text: print(f"  {text}", flush=True))
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        print(f"  ratio of the step: {result['rows'][0]['ratio']:.2f}", flush=True)
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        path = arguments.output / f"{cell.name}.json"
        if path.exists():
            found[cell.name] = json.loads(path.read_text(encoding="utf-8"))
    if not found:
        raise SystemExit(f"No cell is called {' or '.join(arguments.only)}…: see --list.")
    draw(list(found.values()), arguments.picture)
    arguments.page.write_text(page(cells, found, picture_from(arguments.page, arguments.picture)), encoding="utf-8")
    print(f"Written: {arguments.page} and {arguments.picture}")


def measured(path: Path) -> dict[str, Any] | None:
    """The setting whose figures a file holds."""
    if not path.exists():
        return None
    setting: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["setting"]
    return setting


def picture_from(page_path: Path, picture: Path) -> str:
    """The picture's path as the page names it."""
    return Path(os.path.relpath(picture.resolve(), page_path.resolve().parent)).as_posix()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5, help="steps that count, in every cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", help="cells whose name begins so")
    parser.add_argument("--list", action="store_true", help="name the cells and stop")
    parser.add_argument("--again", action="store_true", help="measure cells that are there already too")
    parser.add_argument("--gpu", action="store_true", help="also the cells for a GPU, with vLLM among them")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "step", help="where each cell's figures are kept")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    return parser.parse_args()


if __name__ == "__main__":
    main()
