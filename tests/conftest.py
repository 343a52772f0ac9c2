"""What every test stands on: no hub, quiet tokenizers, and the fixtures that more than one file needs."""

from __future__ import annotations

import gc
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from covey.model.reasoning_vocab import ReasoningVocabulary

# Set before any test file imports a library that reads them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A shell that starts `make test` in the background, and nohup, have these ignored, which every process of a test would
# inherit: one that waits for Ctrl-C would wait for ever. A handler is not inherited.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs another library of environments where that is not installed."""
    for item in items:
        for marker in item.iter_markers("adapter"):
            if find_spec(marker.args[0]) is None:
                why = f"{marker.args[0]} is not installed here: `make test-adapters` runs this in .venv-adapters"
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: compressed ones hold the time, and two processes would collect different tests."""
    return argname if isinstance(val, bytes) else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell how far grading agrees with each corpus, from whatever process its tests ran in."""
    counts: dict[str, list[int]] = {}
    for report in (report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())):
        for name, value in getattr(report, "user_properties", ()):
            if name == "graded":
                corpus, agreed, count = value
                before = counts.get(corpus, [0, 0])
                counts[corpus] = [before[0] + agreed, before[1] + count]
    if counts:
        terminalreporter.section("agreement of grading")
        for corpus, (agreed, count) in sorted(counts.items()):
            terminalreporter.write_line(f"{agreed:5} of {count:5} ({agreed / count:7.2%})  {corpus}")


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_no_garbage() -> None:
    """Every `train` ends with a full garbage collection: a quarter of a second if it goes through all libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_log() -> None:
    """What a test logs does not depend on what the tests before it logged."""
    from covey.log_once import begin_run

    begin_run()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real datasets: the environment variable COVEY_SHARED_DATA, or ../shared/data."""
    folder = Path(os.environ.get("COVEY_SHARED_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no datasets in {folder}: set COVEY_SHARED_DATA to the folder that holds them")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a Qwen3 of random weights (some ten thousand parameters) and the starter's tokenizer."""
    import torch
    from transformers import Qwen3ForCausalLM

    from covey.model.starter.coldstart import make_tokenizer, starter_config

    tokenizer = make_tokenizer()
    config = starter_config(tokenizer)
    config.update({"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8})
    config.layer_types = config.layer_types[:2]
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    folder = tmp_path_factory.mktemp("tiny-model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def wide_starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starter with one copy of each of its tokens."""
    from covey.model.reasoning_vocab.expansion import expand
    from covey.model.starter import STARTER_PATH

    folder = tmp_path_factory.mktemp("wide") / "model"
    expand(STARTER_PATH, folder, "full")
    return folder


@pytest.fixture(scope="session")
def starter_vocabulary(wide_starter: Path) -> ReasoningVocabulary:
    """What that copy knows of its tokens."""
    from covey.model.reasoning_vocab import ReasoningVocabulary

    return ReasoningVocabulary.load(wide_starter)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `gpu` need a CUDA device."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
