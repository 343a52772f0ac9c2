"""The notebooks of `examples/` run from top to bottom, in a fresh kernel, without widgets."""

from __future__ import annotations

import gc
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the kernel's client
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def _texts(notebook: Any, kind: str) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return ["".join(output["data"][kind]) for output in outputs if kind in output.get("data", {})]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_its_results(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.outputs = []
        cell.source = re.sub(r"max_steps=\d+", "max_steps=2", cell.source)
    (tmp_path / "work").mkdir()
    manager = AsyncKernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    client = NotebookClient(
        notebook, km=manager, timeout=None, resources={"metadata": {"path": str(tmp_path / "work")}}
    )
    try:
        client.execute()
    finally:
        del client, manager
        gc.collect()  # their sockets warn when they are collected, which is no other test's fault

    streams = [o for cell in notebook.cells for o in cell.get("outputs", ()) if o.output_type in ("stream", "error")]
    assert not [output for output in streams if output.get("name") != "stdout"], "nothing goes to standard error"
    html = _texts(notebook, "text/html")
    assert any("step 2/2" in text for text in html), "the panel, as it was last drawn"
    assert any("data:image/png;base64," in text for text in html), "the curves of a result"
    assert any("paired test" in text for text in html)
    assert not any("<script" in text for text in html)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_names_no_place_of_the_machine_it_was_written_on(path: Path) -> None:
    assert str(ROOT) not in path.read_text(encoding="utf-8")
    assert not re.search(r"/(home|work|root|tmp|Users)/", path.read_text(encoding="utf-8"))
