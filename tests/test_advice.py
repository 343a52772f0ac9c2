"""`covey.advice.command`: what a shell and the reader of overrides make of the text is what was given."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from covey.advice import command, install
from covey.cli.main import parse
from covey.config import load


def test_values_are_quoted_for_the_shell() -> None:
    text = command("eval {run} --checkpoint {step}", run="out/a run; rm", step=100)
    assert text == "covey eval 'out/a run; rm' --checkpoint 100"
    assert command("", "train", "run_name=a b") == "covey train 'run_name=a b'"


@pytest.mark.parametrize(
    "name", ["out/plain", "out/two words", "out/a (1), [b]", "it's", 'a "quoted" one', "ünï/cöde", "a=b", "lr=1e-5,x"]
)
def test_a_folder_of_any_name_is_read_back(name: str) -> None:
    words = shlex.split(command("train output_dir={folder} model.name={model}", folder=name, model=name))
    config = load(parse(words[1:]).words)
    assert (config.output_dir, config.model.name) == (name, name)


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"url": "file:///home/me/my%20clone", "dir_info": {"editable": True}}, ["-e", "/home/me/my clone[vllm]"]),
        ({"url": "file:///home/me/covey", "dir_info": {}}, ["/home/me/covey[vllm]"]),
        ({"url": "file:///tmp/covey-1-py3-none-any.whl", "archive_info": {}}, ["/tmp/covey-1-py3-none-any.whl[vllm]"]),
        ({"url": "https://host/covey", "vcs_info": {"vcs": "git"}}, ["covey[vllm] @ git+https://host/covey"]),
        (None, ["covey[vllm]"]),
    ],
)
def test_an_extra_is_added_to_this_installation(
    record: dict[str, object] | None, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip records it; with the `pip` that a shell finds where it is that of this interpreter."""
    installed = tmp_path / "covey-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: covey\nVersion: 1\n")
    if record is not None:
        (installed / "direct_url.json").write_text(json.dumps(record))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert shlex.split(install("vllm")) == ["pip", "install", *wanted]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shlex.split(install("vllm"))[:3] == [sys.executable, "-m", "pip"]
