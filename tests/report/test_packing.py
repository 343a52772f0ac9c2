"""The completions in a report: all, or a sample of whole groups."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from covey.report.completions import Packed, pack_completions
from covey.report.load import load_run
from covey.report.page import render_report
from made_run import make_run, write_evaluation


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("packing") / "made", steps=40)


def _unpacked(packed: Packed) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed.text)))
    return content


def test_completions_come_with_their_groups(run: Path) -> None:
    packed = pack_completions(load_run(run))
    content = _unpacked(packed)
    assert (packed.shown, packed.total) == (640, 640)
    assert [len(group["completions"]) for group in content["groups"]] == [8] * 80
    assert (content["tags"], content["sources"]) == (
        ["think", "answer"],
        [{"source": "training", "kind": "training", "title": "training"}],
    )
    first = content["groups"][0]
    assert (first["step"], first["source"]) == (1, "training")
    assert first["prompt"].startswith("<|im_start|>user\nWhat is ")
    assert first["completions"][0]["text"].startswith("<script>window.pwned = 1</script><think>")


def test_a_sample_is_whole_groups_over_all_steps(run: Path) -> None:
    record = load_run(run)
    few = _unpacked(pack_completions(record, most=320))["groups"]
    assert [group["step"] for group in few] == list(range(1, 41))
    assert {len(group["completions"]) for group in few} == {8}
    small = pack_completions(record, most_bytes=8000)
    assert len(small.text) <= 8000
    assert 8 <= small.shown < 640
    assert small.shown % 8 == 0
    assert f"{small.shown} of 640 shown" in render_report(record, small)


def test_evaluations_are_there_too_and_of_many_the_first_and_the_last(tmp_path: Path) -> None:
    run = make_run(tmp_path / "made", steps=4)
    for step in (0, 2, 4):
        write_evaluation(run, step, [1.0, 0.0] * 20)
    record = load_run(run)
    whole = _unpacked(pack_completions(record))
    assert [one["title"] for one in whole["sources"]] == ["training", "held-out"]
    assert [group["step"] for group in whole["groups"] if group["source"] == "held-out/test"] == [0] * 40 + [2] * 40 + [
        4
    ] * 40
    sampled = pack_completions(record, most=92)
    assert sampled.total == 64 + 120
    groups = [group for group in _unpacked(sampled)["groups"] if group["source"] == "held-out/test"]
    assert [(group["step"], group["problem"]) for group in groups] == [
        (step, at) for step in (0, 4) for at in range(20)
    ]
