"""A run as a manifest: SkyPilot's, and a Slurm script that holds the config."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey.cli.main import main
from covey.config import load, to_yaml
from covey.errors import ConfigError
from covey.launch.machine import Machine
from covey.launch.manifests import render

TWO = ("launch.nodes=2", "launch.gpus=8", "run_name=a", "training.per_device_train_batch_size=8")


def _rendered(*words: str, kind: str = "skypilot") -> str:
    return render(load([*TWO, *words]), "unnamed", Machine(), kind)


def _embedded(script: str, folder: Path) -> Any:
    """The config that a script writes, as it would be read, run by a shell without the command at its end."""
    lines = script.splitlines(keepends=True)
    end = next(at for at, line in enumerate(lines) if line == "COVEY_CONFIG\n")
    start = next(at for at, line in enumerate(lines) if line.startswith("cat > "))
    subprocess.run(["bash", "-c", "".join(lines[start : end + 1])], cwd=folder, check=True)
    (file,) = folder.glob("*.yaml")
    assert file.name == "covey-a.yaml"
    return load(recipe=file)


def test_skypilot_is_told_everything_and_no_secret(tmp_path: Path) -> None:
    words = (
        "launch.image=me/covey:1",
        "training.push_to_hub=true",
        "training.report_to=[wandb]",
        "training.use_vllm=true",
    )
    token = "training.hub_token=hf_abcdefghijklmnop1234567890ab"
    text = _rendered(*words, token, "launch.volume=disk:/shared")
    found = yaml.safe_load(text)
    assert "hf_abcdefghij" not in text
    assert found["name"] == "covey-a"
    assert found["num_nodes"] == 2
    assert set(found["resources"]["accelerators"].values()) == {8}
    assert found["resources"]["image_id"] == "docker:me/covey:1"
    assert found["volumes"] == {"/shared": "disk"}
    assert found["secrets"] == {"COVEY_SECRETS": None, "HF_TOKEN": None, "WANDB_API_KEY": None}
    assert "covey[vllm]" in found["setup"]
    assert found["run"].splitlines()[-1] == "covey launch --config covey-a.yaml resume=auto overwrite=false"
    config = _embedded(found["run"], tmp_path)
    assert config.output_dir == "/shared/out"
    assert config.launch.log_dir == "/shared/logs"
    assert (config.launch.nodes, config.launch.gpus, config.launch.backend) == (2, 8, "local")
    shared = ("output_dir=/shared/out", "launch.log_dir=/shared/logs", "launch.volume=disk:/shared")
    assert to_yaml(config) == to_yaml(load([*TWO, *words, *shared]))


def test_several_nodes_need_a_place_that_they_share() -> None:
    with pytest.raises(ConfigError, match=r"launch.nodes=2 share output_dir and launch.log_dir: give launch.volume"):
        _rendered()
    assert "volumes" not in yaml.safe_load(_rendered("output_dir=/data/out", "launch.log_dir=/data/logs"))
    alone = yaml.safe_load(_rendered("launch.nodes=1", "launch.gpus=0"))
    assert alone["resources"] == {}


def test_a_slurm_script_with_its_config(tmp_path: Path) -> None:
    script = _rendered("launch.image=me/covey:1", "launch.volume=disk:/shared", kind="slurm")
    assert "#SBATCH --nodes=2\n" in script
    assert script.splitlines()[-1] == (
        "exec srun --ntasks-per-node=1 --cpus-per-task=64 --container-image=me/covey:1 --container-mounts=disk:/shared "
        "--kill-on-bad-exit=1 covey launch --config covey-a.yaml resume=auto overwrite=false"
    )
    assert _embedded(script, tmp_path).output_dir == "/shared/out"
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*TWO, "launch.volume=disk:/shared", "training.push_to_hub=true")
    assert main(["launch", "--render", "skypilot", *words]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["secrets"] == {"HF_TOKEN": None}


@pytest.mark.parametrize("more", [(), ("launch.gpus=0",), ("launch.image=me/covey:1",)])
def test_skypilot_reads_it(more: tuple[str, ...]) -> None:
    sky = pytest.importorskip("sky", reason="needs `pip install skypilot`, which pins older versions of what .venv has")
    text = _rendered("launch.volume=disk:/shared", "training.push_to_hub=true", *more)
    task = sky.Task.from_yaml_config(yaml.safe_load(text), secrets_overrides=[("HF_TOKEN", "x")])
    assert (task.name, task.num_nodes) == ("covey-a", 2)
    gpus = {next(iter(one.accelerators.values())) for one in task.resources if one.accelerators}
    assert gpus == (set() if "launch.gpus=0" in more else {8})
