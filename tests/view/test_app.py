"""The requests that `covey view` answers, and those that it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from covey.runlog.notes import read_tags
from covey.view.app import make_app
from covey.view.http import MOST_BYTES
from made_run import UGLY, make_run, write_evaluation

TOKEN, COOKIE = "a token", "covey_view_1"
HOST = "http://127.0.0.1:8420"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the same config, evaluated on the same problems."""
    folder = tmp_path_factory.mktemp("view") / "out"
    for seed, (name, scores) in enumerate({"a": [0] * 12 + [1] * 8, "b": [1] * 10 + [0] * 2 + [1] * 8}.items()):
        write_evaluation(make_run(folder / name, steps=20, seed=seed), 20, scores)
    return folder


def client(out: Path, **headers: str) -> TestClient:
    return TestClient(make_app(out, TOKEN, COOKIE), HOST, headers=headers, follow_redirects=False)


@pytest.fixture
def view(out: Path) -> TestClient:
    return client(out, authorization=f"Bearer {TOKEN}")


ADDRESSES = ("/", "/assets/report.css", "/api/runs", "/api/run?id=a", "/api/curves?id=a", "/api/events", "/nowhere")


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_is_answered_without_the_token(address: str, out: Path) -> None:
    wrong = "&token=wrong" if "?" in address else "?token=wrong"
    for answer in (
        client(out).get(address),
        client(out).get(address + wrong),
        client(out, authorization="Bearer wrong").get(address),
        client(out, authorization=f"Basic {TOKEN}").get(address),
        client(out, cookie=f"{COOKIE}=wrong").get(address),
        client(out, cookie=f"another={TOKEN}").get(address),
    ):
        assert answer.status_code == 401
        assert "ends with ?token=" in answer.json()["error"]
        assert not answer.cookies


def test_the_token_becomes_a_cookie(out: Path) -> None:
    page = client(out).get("/", params={"token": TOKEN})
    assert page.status_code == 200
    (cookie,) = page.headers.get_list("set-cookie")
    assert cookie.startswith(f'{COOKIE}="{TOKEN}"')
    assert {"httponly", "path=/", "samesite=strict"} <= set(cookie.lower().split("; "))
    again = client(out, cookie=f'{COOKIE}="{TOKEN}"')
    assert [again.get(address).status_code for address in ("/", "/assets/report.css", "/api/runs")] == [200, 200, 200]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8420", 200),
        ("localhost:9000", 200),  # a forwarded port
        ("[::1]:8420", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:8420", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_only_names_of_this_machine(host: str, status: int, view: TestClient) -> None:
    assert view.get("/api/runs", headers={"host": host}).status_code == status


def test_no_answer_is_stored_or_may_load_anything(view: TestClient) -> None:
    for address in (*(one for one in ADDRESSES if "events" not in one), "/api/run", "/api/run?id=c"):
        headers = view.get(address).headers
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy


def test_assets(view: TestClient, root: Path) -> None:
    css = view.get("/assets/report.css")
    assert css.headers["content-type"].startswith("text/css")
    assert css.text == (root / "src/covey/report/assets/report.css").read_text(encoding="utf-8")
    for name in (
        "report.html",
        "missing.js",
        "../app.py",
        "..%2fapp.py",
        "%2e%2e%2fapp.py",
        "..%5capp.py",
        ".js",
        "a" * 300 + ".js",
    ):
        assert view.get(f"/assets/{name}").status_code == 404, name


def test_the_list_with_a_baseline(view: TestClient, out: Path) -> None:
    plain = view.get("/api/runs").json()
    assert {entry["id"]: (entry["name"], entry["path"], entry["status"]) for entry in plain} == {
        name: (name, str(out / name), "finished") for name in ("a", "b")
    }
    listed = {entry["id"]: entry for entry in view.get("/api/runs", params={"baseline": "a"}).json()}
    assert "difference" not in listed["a"]
    found = listed["b"]["difference"]
    assert found["value"] == pytest.approx(0.5)  # 10 of 20 problems gained, none lost
    assert found["p"] == pytest.approx(2 / 2**10)  # McNemar's exact test
    assert found["problems"] == 20
    assert 0 < found["low"] < 0.5 < found["high"] < 1
    assert view.get("/api/runs", params={"baseline": "c"}).status_code == 404


def test_a_run_is_shown_as_in_its_report(view: TestClient) -> None:
    page = view.get("/api/run", params={"id": "a"}).json()
    assert page["entry"]["id"] == "a"
    assert page["title"] == "starter </title><script>window.pwned = 3</script> on arithmetic"
    assert page["ended"].startswith("Finished after 20 steps")
    assert ["objective", "maxent"] in page["settings"]
    assert "window.pwned" in page["config"]
    assert {"level", "title", "figure", "text", "rule"} <= page["findings"][0].keys()
    assert page["evaluations"] == page["modes"] == []
    missing = view.get("/api/run", params={"id": "../a"})
    assert missing.status_code == 404
    assert "holds no run" in missing.json()["error"]
    assert view.get("/api/run").status_code == 400


def test_curves_are_sent_once(view: TestClient, tmp_path: Path) -> None:
    run = make_run(tmp_path / "live", steps=4)
    live = client(tmp_path, authorization=f"Bearer {TOKEN}")
    first = live.get("/api/curves", params={"id": "live"}).json()
    (axes,) = first["axes"]
    assert axes["step"] == [0, 1, 2, 3, 4]
    assert axes["seconds"] == [0, 2, 4, 6, 8]
    panels = {panel["key"]: panel for _, found in first["sections"] for panel in found}
    assert panels["reward"]["series"][0]["steps"] == [1, 2, 3, 4]
    assert panels["accuracy"]["series"][0]["low"]
    again = {"id": "live", "after": first["version"]}
    assert live.get("/api/curves", params=again).status_code == 304
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "train/reward": 0.5}\n')
    newer = live.get("/api/curves", params=again).json()
    assert newer["version"] != first["version"]
    assert newer["axes"][0]["step"][-1] == 5


def test_tags_are_written_by_this_page_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "a", steps=1)
    view = client(tmp_path, authorization=f"Bearer {TOKEN}")
    content = {"id": "a", "tags": ["good", UGLY[0]], "note": UGLY[2]}

    def post(body: Any = content, **headers: str) -> int:
        return int(view.post("/api/tags", content=json.dumps(body), headers=headers).status_code)

    as_json = {"content-type": "application/json; charset=utf-8"}
    refused: Mapping[int, list[Mapping[str, str]]] = {
        415: [{}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}],
        403: [as_json | {"origin": origin} for origin in ("http://evil.example", "null", "https://127.0.0.1:8420")],
    }
    for status, several in refused.items():
        assert [post(**headers) for headers in several] == [status] * len(several)
    assert view.get("/api/tags").status_code == 405
    assert read_tags(tmp_path / "a").tags == ()
    assert post(**as_json) == post(**as_json, origin=HOST) == 200
    assert read_tags(tmp_path / "a").tags == ("good", UGLY[0])
    (entry,) = view.get("/api/runs").json()
    assert (entry["tags"], entry["note"]) == (["good", UGLY[0]], read_tags(tmp_path / "a").note)
    wrong = ([], {"tags": []}, {"id": "a", "tags": "good"}, {"id": "a", "note": "a" * 20_000}, {"id": ["a"]})
    assert [post(body, **as_json) for body in wrong] == [400, 404, 400, 400, 404]
    assert post({"id": "a", "note": "a" * MOST_BYTES}, **as_json) == 400
    assert view.post("/api/tags", content=b"[" * 90_000, headers=as_json).status_code == 400


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_run_that_may_not_be_written_to(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=1)
    run.chmod(0o555)
    try:
        answer = client(tmp_path, authorization=f"Bearer {TOKEN}").post("/api/tags", json={"id": "a", "note": "x"})
    finally:
        run.chmod(0o755)
    assert answer.status_code == 409
    assert "Could not write tags.json" in answer.json()["error"]


def test_a_folder_where_the_tags_should_be(tmp_path: Path) -> None:
    (make_run(tmp_path / "a", steps=1) / "tags.json").mkdir()
    view = client(tmp_path, authorization=f"Bearer {TOKEN}")
    for content in ({"tags": ["x"]}, {}):
        answer = view.post("/api/tags", json={"id": "a", **content})
        assert (answer.status_code, "Is a directory" in answer.json()["error"]) == (409, True)
    (entry,) = view.get("/api/runs").json()
    assert entry["tags"] == []


PIPES = (
    *("tags.json", "summary.json", "environment.json", "metrics.jsonl", "config.yaml", "vocabulary.json", ".lock"),
    *("completions/step-000001.parquet", "evaluation/test-step-000001.jsonl", "evaluation/gsm8k/settings.json"),
)


@pytest.mark.parametrize("file", PIPES)
def test_nobody_waits_for_a_pipe(file: str, tmp_path: Path) -> None:
    """Opening one waits for its writer."""
    path = make_run(tmp_path / "a", steps=2) / file
    path.parent.mkdir(exist_ok=True, parents=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    view = client(tmp_path, authorization=f"Bearer {TOKEN}")
    for address in (
        "runs",
        "run?id=a",
        "curves?id=a",
        "sources?id=a",
        "completions?id=a&source=training",
        "search?q=a",
    ):
        answer = view.get(f"/api/{address}")
        assert answer.status_code == 200 or "cannot be read" in answer.json()["error"], (address, answer.text)


def test_any_text_arrives_as_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=2)
    (run / "config.yaml").write_text(json.dumps({"model": {"name": "\ud800\u2028 " + UGLY[2]}}))
    (entry,) = client(tmp_path, authorization=f"Bearer {TOKEN}").get("/api/runs").json()
    assert entry["model"].endswith(UGLY[2])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metrics.jsonl", '{"step": 1, "time/step": "soon", "train/reward": NaN, "eval/accuracy": [1]}\n'),
        ("config.yaml", "training: [1]\nevaluation: 3\nrewards: [a]\n"),
        ("tags.json", "[" * 100_000),
        ("environment.json", '{"a":' * 100_000),
        ("summary.json", '{"held_out": 3, "status": ["failed"], "training_seconds": "none"}'),
        ("environment.json", '{"packages": 4}'),
    ],
)
def test_files_of_any_content_are_an_answer(file: str, text: str, tmp_path: Path) -> None:
    (make_run(tmp_path / "a", steps=2) / file).write_text(text)
    view = client(tmp_path, authorization=f"Bearer {TOKEN}")
    for address in ("/api/runs", "/api/run?id=a", "/api/curves?id=a", "/api/sources?id=a", "/api/search?q=a"):
        answer = view.get(address)
        assert answer.status_code == 200 or "cannot be read" in answer.json()["error"], (address, answer.text)
