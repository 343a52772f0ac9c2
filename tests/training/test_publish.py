"""Pushing to the hub, against a fake of its HTTP API: what is pushed, and what a failing network costs.

The commands run in processes of their own, since huggingface_hub reads HF_ENDPOINT when it is imported.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from completed import completed
from fake_hub import TOKEN, Hub, hub
from made_run import make_run


@pytest.fixture
def served() -> Iterator[Hub]:
    with hub() as found:
        yield found


def covey(served: Hub, *words: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    source = Path(__file__).parents[2] / "src"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        **{"PYTHONPATH": str(source), "HF_ENDPOINT": served.address, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"},
        **({} if token is None else {"HF_TOKEN": token}),
    }
    command = [sys.executable, "-m", "covey.cli.main", *words]
    return completed(command, env=environment, timeout=300)


def finished_run(folder: Path) -> Path:
    run = make_run(folder, steps=30)
    (run / "final_model").mkdir()
    (run / "final_model" / "config.json").write_text("{}")
    (run / "final_model" / "model.safetensors").write_bytes(b"weights")
    (run / "final_model" / "training_args.bin").write_bytes(b"secret")
    return run


def test_a_run_is_pushed_with_its_card_and_nothing_else(served: Hub, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "my-run")
    done = covey(served, "push", str(run), "me/my-model", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{served.address}/me/my-model"
    files = served.branches["me/my-model"]["main"]
    assert sorted(files) == ["README.md", "config.json", "model.safetensors"]
    assert files["model.safetensors"] == b"weights"
    assert served.private["me/my-model"] is True
    card = files["README.md"].decode()
    assert yaml.safe_load(card.split("---\n")[1])["tags"][0] == "covey"
    assert 'from_pretrained("me/my-model"' in card
    # What it says beforehand, without a token or a request.
    dry = covey(served, "push", str(run), "me/my-model", "--dry-run", token=None)
    assert (dry.returncode, dry.stderr) == (0, "")
    printed, rest = dry.stdout[: len(card)], dry.stdout[len(card) :]
    assert printed == card
    sizes = {name: int(size.replace(",", "")) for size, name in re.findall(r"^ *([\d,]+) bytes  (\S+)$", rest, re.M)}
    assert sizes == {name: len(content) for name, content in files.items()}
    assert "in 3 files would go to me/my-model, branch main; nothing was uploaded." in rest
    assert "..bad" in covey(served, "push", str(run), "me/..bad", "--dry-run").stderr
    # Again, to a new branch: the main one does not change.
    (run / "final_model" / "model.safetensors").write_bytes(b"better")
    done = covey(served, "push", str(run), "me/my-model", "--revision", "second")
    assert done.returncode == 0, done.stderr
    assert {name: b["model.safetensors"] for name, b in served.branches["me/my-model"].items()} == {
        "main": b"weights",
        "second": b"better",
    }
    card = served.branches["me/my-model"]["second"]["README.md"].decode()
    assert card.count('from_pretrained("me/my-model", revision="second"') == 2  # the main branch is another model
    assert "`covey eval me/my-model model.revision=second`" in card
    assert served.messages[-1] == "my-run: final, with Covey"


@pytest.mark.parametrize(
    ("token", "refusing", "expected"), [(None, 0, "token"), ("hf_wrong", 0, "401"), (TOKEN, 500, "500")]
)
def test_a_hub_that_refuses_is_reported_in_one_paragraph(
    served: Hub, tmp_path: Path, token: str | None, refusing: int, expected: str
) -> None:
    served.refusing = refusing
    done = covey(served, "push", str(finished_run(tmp_path / "my-run")), "me/my-model", token=token)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert "could not be pushed to me/my-model" in done.stderr
    assert expected in done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_network_that_fails_at_the_end_loses_nothing(served: Hub, tmp_path: Path) -> None:
    settings = [
        *("training.per_device_train_batch_size=8", "training.num_generations=4", "training.max_steps=1"),
        *("training.gradient_accumulation_steps=1", "training.max_completion_length=8", "dataset.train_size=12"),
        *("evaluation.every_steps=0", f"output_dir={tmp_path}", "training.push_to_hub=true"),
        *("training.hub_model_id=me/my-model", "training.hub_revision=try", "training.hub_token=" + TOKEN),
    ]
    served.refusing = 503
    done = covey(served, "train", *settings, "run_name=r", token=None)
    out = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr
    assert "The run is complete" in out
    assert f"covey push {tmp_path}/r me/my-model --revision try" in out
    assert (tmp_path / "r" / "final_model" / "model.safetensors").is_file()
    assert not any(TOKEN.encode() in path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file())
    pushing = [line for line in served.requests if "/api/models/" in line or "/api/repos/" in line]
    assert pushing == ["POST /api/repos/create"]  # no request before the end
    served.refusing = 0
    done = covey(served, "train", *settings, "run_name=s", token=None)
    assert f"Pushed to {served.address}/me/my-model" in " ".join(done.stdout.split()), done.stdout
    assert "model.safetensors" in served.branches["me/my-model"]["try"]
    assert served.messages == ["s: final, with Covey"]
