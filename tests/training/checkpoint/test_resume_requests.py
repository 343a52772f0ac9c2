"""What `resume` asks for, against what is there: refused early and clearly, and nothing is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.cli.main import main
from covey.config import Config, load, to_yaml
from covey.config.named_code import own_code
from covey.errors import RunDirectoryError
from covey.runlog.checkpoint import mark_complete
from covey.runlog.directory import RunDirectory
from covey.runlog.notes import record_environment
from covey.training.checkpoint.resume import plan_resume


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.chdir(tmp_path)


def made_run(root: str, *steps: int) -> RunDirectory:
    """A run of the default config with complete checkpoints after these steps."""
    run = RunDirectory(Path(root))
    run.root.mkdir(parents=True)
    run.config.write_text(to_yaml(load()), encoding="utf-8")
    for step in steps:
        checkpoint = run.checkpoint(step)
        checkpoint.mkdir()
        (checkpoint / "model.safetensors").write_bytes(b"weights")
        mark_complete(checkpoint, step)
    return run


def trainers_checkpoint(path: str, adapters: bool = False) -> Path:
    """A checkpoint as transformers' Trainer writes it."""
    folder = Path(path)
    folder.mkdir(parents=True)
    for name in ("trainer_state.json", "adapter_config.json" if adapters else "config.json"):
        (folder / name).write_text(json.dumps({"global_step": 3}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def plan(run: str, *words: str) -> tuple[Path | None, int]:
    config: Config = load(words)
    found = plan_resume(config, RunDirectory(Path(run)))
    return found.checkpoint, found.step


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_demanded_checkpoint_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "launch"):
        assert main([command, "resume=true", "run_name=new"]) == 1
        error = " ".join(capsys.readouterr().err.split())
        assert "resume=true needs a checkpoint, but out/new holds no complete one" in error
    assert not Path("out").exists()


def test_it_is_refused_before_pytorch_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import builtins

    original = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        assert name != "covey.training.run", "training was imported"
        return original(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(["train", "resume=true", "run_name=new"]) == 1
    assert main(["train", "resume=nowhere/checkpoint-3", "run_name=new"]) == 1
    assert "resume=nowhere/checkpoint-3 is not a folder" in capsys.readouterr().err


def test_the_same_words_go_on_from_the_newest_checkpoint() -> None:
    run = made_run("data/mine", 1, 2)
    assert plan("data/mine") == (run.checkpoint(2), 2)
    assert plan("data/mine", "resume_from_checkpoint=true") == (run.checkpoint(2), 2)
    assert plan("data/none", "resume_from_checkpoint=true") == (None, 0)


def test_a_checkpoint_of_the_run_itself_and_of_another() -> None:
    run = made_run("data/mine", 1, 2)
    before = snapshot(run.root)
    assert plan("data/mine", "resume_from_checkpoint=data/mine/checkpoint-2") == (Path("data/mine/checkpoint-2"), 2)
    assert plan("data/new", "resume_from_checkpoint=data/mine/checkpoint-1") == (Path("data/mine/checkpoint-1"), 1)
    with pytest.raises(
        RunDirectoryError, match=r"older than checkpoint-2 .* Leave resume out to go on from the newest"
    ):
        plan("data/mine", "resume_from_checkpoint=data/mine/checkpoint-1")
    made_run("data/other", 1)
    with pytest.raises(RunDirectoryError, match=r"data/other is not empty.* leave resume out to go on"):
        plan("data/other", "resume_from_checkpoint=data/mine/checkpoint-2")
    with pytest.raises(RunDirectoryError, match=r"data/mine is not a checkpoint .* newest complete checkpoint there"):
        plan("data/new", "resume_from_checkpoint=data/mine")
    assert snapshot(run.root) == before


def test_another_programs_checkpoint_is_named_as_such() -> None:
    path = trainers_checkpoint("theirs/checkpoint-3")
    with pytest.raises(
        RunDirectoryError, match=r"another program's checkpoint .*complete\.json.*model\.name=theirs/ch"
    ):
        plan("data/new", f"resume_from_checkpoint={path}")
    with pytest.raises(
        RunDirectoryError, match=r"theirs is not a run directory of Covey.*touched.*model\.name=theirs/ch"
    ):
        plan("theirs")
    adapters = trainers_checkpoint("adapted/checkpoint-3", adapters=True)
    with pytest.raises(RunDirectoryError, match=r"model\.lora\.path=adapted/checkpoint-3"):
        plan("data/new", f"resume={adapters}")


def test_a_checkpoint_of_coveys_that_was_cut_short_is_not_another_programs() -> None:
    run = made_run("data/mine", 1)
    trainers_checkpoint("data/mine/checkpoint-2")
    assert plan("data/mine") == (run.checkpoint(1), 1)
    with pytest.raises(RunDirectoryError, match=r"checkpoint-2 is not a checkpoint to resume from: it is incomplete"):
        plan("data/mine", "resume=data/mine/checkpoint-2")


def test_code_that_was_edited_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(completions, **kwargs): ...\n")
    words = ["rewards.funcs=[exact_match,mine.py:reward]"]
    run = made_run("out/run", 4)
    run.config.write_text(to_yaml(load(words)), encoding="utf-8")
    record_environment(run, own_code(load(words)))
    config = load(words)
    assert plan_resume(config, run).notes == ("Resuming from checkpoint-4 of out/run.",)
    (tmp_path / "mine.py").write_text("def reward(completions, **kwargs): return 1\n")
    for asked in (config, load([*words, f"resume={run.checkpoint(4)}"])):
        first, second = plan_resume(asked, run).notes
        assert first == (
            "WARNING: the code of mine.py:reward was changed since this run was started: it goes on with the new "
            "version. out/run/code has the one before."
        )
        assert second.startswith("Resuming from ")
