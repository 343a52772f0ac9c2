"""Options of launchers and of other commands: the error names what does the same here."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.cli.main import main
from covey.config import compose
from covey.config.aliases.aliases import look_up
from covey.config.aliases.launcher_flags import OF_COVEY, OF_LAUNCHERS


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("train", "--config_file", "zero3.yaml"), "launch.accelerate=zero3.yaml"),
        (("launch", "--config_file=conf/zero3.yaml"), "launch.accelerate=conf/zero3.yaml"),
        (("launch", "--config-file", "zero3.yaml", "seed=1"), "launch.accelerate=zero3.yaml"),
        (("launch", "--num_processes", "7"), "launch.num_processes=7"),
        (("train", "--num_processes=7"), "launch.num_processes=7"),
        (("train", "--nproc_per_node", "4"), "launch.num_processes=4"),
        (("launch", "--num_machines", "2"), "launch.nodes=2"),
        (("launch", "--main_process_port", "29525"), "launch.main_process_port=29525"),
        (("train", "--multi_gpu"), "launch.accelerate=ddp, fsdp2"),
        (("train", "--mixed_precision", "bf16"), "training.bf16=true"),
        (("train", "--machine_rank", "0"), "launch.node_rank=0"),
        (("train", "--master_addr", "a"), "launch.master=a"),
        (("train", "--rdzv_backend", "c10d"), "`covey launch` on each node, with launch.nodes"),
        (("train", "--dry-run"), "`covey launch --dry-run`"),
        (("train", "--dry-run"), "`covey config`"),
        (("train", "--dry_run"), "`covey doctor`"),
        (("train", "--slurm"), "`covey launch --slurm`"),
    ],
)
def test_the_error_names_the_key(words: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert part in error
    assert "Did you mean" not in error
    assert error.count("\n") == 1


def test_a_recipe_may_count_the_processes_of_its_launcher(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("num_processes: 7\n", encoding="utf-8")
    assert "ignored: num_processes" in "".join(compose((), recipe).notes)


def test_an_accelerate_config_is_no_recipe(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ddp", "fsdp2", "zero3"):
        assert main(["config", str(root / "src" / "covey" / "launch" / "accelerate" / f"{name}.yaml")]) == 2
        assert "launch.accelerate=FILE" in capsys.readouterr().err


def test_no_key_of_training_is_hidden() -> None:
    for name in (*OF_LAUNCHERS, *OF_COVEY):
        known = look_up(name)
        assert known is None or (known.convert is not None and known.convert("x").ignored), name
