"""The Hugging Face hub, reached or not: what is asked again, and what loads without it. No request leaves the test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from covey.config import compose
from covey.data.sources import HubSet
from covey.errors import DataError, ModelError
from covey.hub import check_connection_once
from covey.model.load import load_tokenizer

httpx = sys.modules[type(huggingface_hub.get_session()).__module__.partition(".")[0]]
"""The one of its versions that huggingface_hub uses."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """Replace the hub by what a function answers; gives the list of what it was asked. A wait fails the test."""
    from huggingface_hub.utils import _http

    def no_waiting(seconds: float) -> None:
        raise AssertionError("it asks again")

    monkeypatch.setattr(_http, "time", type("time", (), {"sleep": staticmethod(no_waiting)}))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    before = _http._GLOBAL_CLIENT_FACTORY

    def replace(*answers: Any) -> list[str]:
        asked: list[str] = []

        def answer(request: Any) -> Any:
            asked.append(str(request.url))
            given = answers[min(len(asked), len(answers)) - 1]
            if isinstance(given, Exception):
                raise given
            return given

        client = httpx.Client(transport=httpx.MockTransport(answer), follow_redirects=True)
        huggingface_hub.set_client_factory(lambda: client)
        return asked

    yield replace
    huggingface_hub.set_client_factory(before)


def test_names_are_asked_for_once_without_a_network(hub: Callable[..., list[str]]) -> None:
    asked = hub(httpx.ConnectError("refused"))
    with pytest.raises(ModelError, match=r"model\.name=nobody/nothing cannot be loaded"):
        load_tokenizer(compose(["model.name=nobody/nothing"]).config.model)
    with pytest.raises(DataError, match=r"dataset\.id=nobody/nothing could not be loaded from the hub"):
        HubSet("nobody/nothing", None, None, "dataset.id", "dataset.path").load()
    assert len(asked) == 1


@pytest.mark.parametrize("kind", ["ConnectError", "ConnectTimeout"])
def test_files_in_the_cache_load_without_a_network(hub: Callable[..., list[str]], tmp_path: Path, kind: str) -> None:
    commit = "0" * 40
    folder = tmp_path / "models--somebody--model"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    asked = hub(getattr(httpx, kind)("refused"))
    check_connection_once()
    check_connection_once()
    found = huggingface_hub.hf_hub_download("somebody/model", "config.json", cache_dir=tmp_path)
    assert Path(found).read_text() == "{}"
    with pytest.raises(LocalEntryNotFoundError):
        huggingface_hub.hf_hub_download("somebody/model", "other.json", cache_dir=tmp_path)
    assert len(asked) == 1


def test_what_fails_after_an_answer_is_asked_again(hub: Callable[..., list[str]], tmp_path: Path) -> None:
    hub(httpx.Response(404), httpx.ConnectError("reset"))
    check_connection_once()
    assert huggingface_hub.get_session().get("https://hub.test/first").status_code == 404
    with pytest.raises(AssertionError, match="it asks again"):
        huggingface_hub.hf_hub_download("somebody/model", "config.json", cache_dir=tmp_path)


def test_a_slow_answer_is_no_missing_network(hub: Callable[..., list[str]]) -> None:
    hub(httpx.ReadTimeout("slow"))
    check_connection_once()
    with pytest.raises(httpx.ReadTimeout):
        huggingface_hub.get_session().get("https://hub.test/first")
