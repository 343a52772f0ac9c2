"""Code that is edited while a run trains is reported, each edit once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from transformers import TrainerControl, TrainerState

from covey.training.callbacks import OwnCodeCallback


def test_each_edit_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "mine.py"
    file.write_text("VALUE = 1\n")
    callback = OwnCodeCallback([f"{file}:reward"], tmp_path / "code")

    def log(step: int) -> list[str]:
        caplog.clear()
        callback.on_log(cast(Any, None), TrainerState(global_step=step), TrainerControl())
        return caplog.messages

    assert log(1) == []
    file.write_text("VALUE = 2\n")
    (message,) = log(2)
    assert message.startswith(f"The file of {file}:reward was edited by step 2.")
    assert f"{tmp_path / 'code'} has the version of the start." in message
    assert log(3) == []
    file.write_text("VALUE = 3\n")
    assert len(log(4)) == 1
