"""The study in studies/maxent: the tables that are made of its results."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "studies" / "maxent"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("tables")


def test_the_tables_by_hand(tables: ModuleType) -> None:
    results = [
        tables.Result("start", -1, 0.2, 0.6, 1.0, 0.5, 0.0, 0.0),
        *(tables.Result("grpo", s, a, 0.7, 2.0, 0.30, 0.0, 60.0) for s, a in enumerate((0.40, 0.50, 0.60))),
        *(tables.Result("mle τ=1", s, a, 0.8, 2.5, 0.45, 0.0, 60.0) for s, a in enumerate((0.41, 0.52, 0.63))),
        *(tables.Result("mle τ=2", s, a, 0.7, 2.5, 0.45, 0.0, 60.0) for s, a in enumerate((0.40, 0.51, 0.60))),
    ]
    lines = tables.page(results).splitlines()
    assert "| start |  | 20.0 | 60.0 | 1.00 | 0.500 |" in lines
    # t(2) = 4.3027: 0.5 ± 4.3027 · 0.1 / √3
    assert "| grpo | 3 | 50.0 [25.2, 74.8] | 70.0 [70.0, 70.0] | 2.00 [2.00, 2.00] | 0.300 [0.300, 0.300] |" in lines
    # 0.02 ± 4.3027 · 0.01 / √3; t = √12, p = 1 - √(12 / 14) = 0.0742, twice that after Holm's correction over two arms.
    # The other's differences are 0, 0.01, 0: t = 1, p = 1 - √(1 / 3) = 0.42.
    row, other = (next(line for line in lines[-2:] if f"τ={tau}" in line) for tau in (1, 2))
    assert row.startswith("| mle τ=1 | +2.0 [-0.5, +4.5], 0.15 | +10.0 [+10.0, +10.0], 0 |")
    assert other.startswith("| mle τ=2 | +0.3 [-1.1, +1.8], 0.42 | +0.0 [+0.0, +0.0], 1 |")


def test_the_committed_tables_belong_together(tables: ModuleType) -> None:
    results = tables.read_csv(FOLDER / "results.csv")
    assert (FOLDER / "results.md").read_text(encoding="utf-8") == tables.page(results)
