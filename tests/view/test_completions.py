"""The completions of runs over HTTP: lists, one with its group, search over all runs, and two runs compared."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from covey.report.completions import sources_of
from covey.runlog import RunDirectory, write_completions
from covey.runlog.evaluations import append_completions, begin_evaluation
from covey.view.app import make_app
from covey.view.completions import AHEAD, CompletionStore, Query
from made_run import UGLY, make_run, write_evaluation


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completions") / "out"
    for seed, (name, scores) in enumerate({"a": [0] * 12 + [1] * 8, "b": [1] * 10 + [0] * 2 + [1] * 7 + [0]}.items()):
        run = make_run(folder / name, steps=6, seed=seed)
        for step in (0, 6):
            write_evaluation(run, step, scores)
    make_run(folder / "tools", steps=2, tools=True)
    begin_evaluation(folder / "alone", {"name": "gsm8k", "seed": 1})
    append_completions(folder / "alone", [{"problem": 0, "prompt": "Why?", "completion": "Division by zero"}])
    return folder


@pytest.fixture(scope="module")
def view(out: Path) -> TestClient:
    return TestClient(make_app(out, "t", "c"), "http://127.0.0.1:1", headers={"authorization": "Bearer t"})


def get(view: TestClient, path: str, **parameters: Any) -> Any:
    answer = view.get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_sources(view: TestClient) -> None:
    found = {one["source"]: (one["kind"], one["steps"], one["count"]) for one in get(view, "sources", id="a")}
    assert found == {
        "training": ("training", [1, 2, 3, 4, 5, 6], 96),
        "held-out/test": ("held-out", [0, 6], 40),
    }
    (alone,) = get(view, "sources", id="alone")
    assert (alone["source"], alone["kind"], alone["count"], alone["tags"]) == (
        "evaluation",
        "benchmark",
        1,
        ["think", "answer"],
    )


def test_a_list_leads_to_whole_completions_of_all_kinds(view: TestClient) -> None:
    for run, source in (("a", "training"), ("a", "held-out/test"), ("tools", "training"), ("alone", "evaluation")):
        found = get(view, "completions", id=run, source=source, limit=500)
        assert len(found["rows"]) == found["total"] == found["count"]
        for row in found["rows"][:: max(1, found["total"] // 20)]:
            group = get(view, "completion", id=run, source=source, row=row["row"])
            (one,) = [one for one in group["completions"] if one["row"] == row["row"]]
            assert (one["text"][:160], one.get("reward")) == (row["text"], row.get("reward"))
            assert (group["question"][:160], group.get("step")) == (row["question"], row.get("step"))


def test_hostile_text_and_turns_come_as_they_are(view: TestClient) -> None:
    group = get(view, "completion", id="tools", source="training", row="1:3")
    turns = group["completions"][3]["turns"]
    assert turns[0][1][0][0] == UGLY[0]  # the name of a tool
    assert [len(turn) for turn in turns] == [2, 1, 2, 1, 2, 1]
    assert get(view, "completions", id="tools", source="training", q="</SCRIPT><img")["total"] > 0


def test_a_search_over_all_runs(view: TestClient) -> None:
    found = get(view, "search", q="division BY zero")
    assert {one["id"] for one in found["found"]} == {"tools", "alone"}
    assert found["total"] == sum(one["total"] for one in found["found"])
    assert all(len(one["rows"]) == min(5, one["total"]) for one in found["found"])
    (alone,) = get(view, "search", q="division", id=["a", "alone"])["found"]
    assert alone["rows"][0] == {"row": ":0", "problem": 0, "question": "Why?", "text": "Division by zero"}
    assert get(view, "search", q="no such words") == {"total": 0, "found": [], "damaged": []}


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("sources", 400, "needs ?id="),
        ("sources?id=../a", 404, "holds no run"),
        ("completions?id=a", 400, "needs ?source="),
        ("completions?id=a&source=evaluation/../..", 400, "it has those of: training, held-out/test"),
        ("completions?id=a&source=training&sort=x", 400, "sort=x is not possible"),
        ("completion?id=a&source=training&row=1:16", 400, "has no completion 1:16"),
        ("completion?id=a&source=training&row=7:0", 400, "has no completion 7:0"),
        ("completion?id=a&source=training&row=/etc/passwd", 400, "has no completion"),
        ("search?q=+", 400, "needs a text"),
        ("compare?a=a", 400, "needs ?b="),
        ("compare?a=a&b=b&show=best", 400, "show=best is not possible"),
    ],
)
def test_what_is_not_possible_is_explained(view: TestClient, path: str, status: int, says: str) -> None:
    answer = view.get(f"/api/{path}")
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text


def test_a_run_that_is_being_written_and_a_damaged_file(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", steps=3)
    store = CompletionStore()
    query = Query(q="<answer>")
    assert store.find(sources_of(root)[0], query)["total"] == 48
    columns = {"prompt": ["p"], "completion": ["<answer>new"]}
    write_completions(RunDirectory(root).completions, 4, columns)
    assert store.find(sources_of(root)[0], query)["total"] == 49
    write_completions(RunDirectory(root).completions, 2, columns)  # again, after a resume
    assert store.find(sources_of(root)[0], query)["total"] == 34
    (root / "completions" / "step-000001.parquet").write_bytes(b"PAR1")
    found = store.find(sources_of(root)[0], query)
    assert found["total"] == 18
    assert [note for note in found["damaged"] if "step-000001.parquet is not a complete Parquet file" in note]
    (root / "completions" / "step-000003.parquet").unlink()
    assert store.find(sources_of(root)[0], query)["total"] == 2


def test_a_search_goes_on_after_a_run_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, steps=1)

    def sources(root: Path) -> list[Any]:
        if root.name == "a":
            raise PermissionError(13, "Permission denied")
        return sources_of(root)

    monkeypatch.setattr("covey.view.completions.sources_of", sources)
    view = TestClient(make_app(tmp_path, "t", "c"), "http://127.0.0.1:1", headers={"authorization": "Bearer t"})
    found = get(view, "search", q="<answer>", limit=0)
    assert [(one["id"], one["rows"], one["total"]) for one in found["found"]] == [("b", [], 16)]
    assert found["damaged"] == [
        "A file of the run a cannot be read ([Errno 13] Permission denied): it was cut short or changed."
    ]


def test_texts_beyond_the_memory_are_read_again(tmp_path: Path) -> None:
    (source,) = sources_of(make_run(tmp_path / "run", steps=5))
    small, large = CompletionStore(most_bytes=1), CompletionStore()
    for words in ("answer", "never closed", "nothing like that"):
        for _ in range(2):
            assert small.find(source, Query(q=words)) == large.find(source, Query(q=words))


def test_the_first_page_does_not_wait_for_the_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the files of the page are read before it is shown; the others are in the background."""
    (source,) = sources_of(make_run(tmp_path / "run", steps=6))
    whole = CompletionStore()
    whole.find(source, Query(q="a"))
    expected = whole.find(source, Query(offset=30, limit=20))
    read, may_go_on = [], threading.Event()
    real = type(source).groups

    def groups(self: Any, step: int | None, **how: Any) -> Any:
        if threading.current_thread().name == AHEAD:
            may_go_on.wait(60)
        read.append(step)
        return real(self, step, **how)

    monkeypatch.setattr(type(source), "groups", groups)
    store = CompletionStore()
    page = store.find(source, Query(offset=30, limit=20))  # of 16 a step: 30 to 49
    assert sorted(read) == [2, 3, 4]
    assert (page["partial"], page["total"], page["rows"]) == (True, 96, expected["rows"])
    may_go_on.set()
    for thread in threading.enumerate():
        if thread.name == AHEAD:
            thread.join(60)
    assert sorted(read) == [1, 2, 3, 4, 5, 6]
    assert "partial" not in store.find(source, Query(offset=30, limit=20))


def test_two_runs_on_the_same_problems(view: TestClient) -> None:
    """12 problems wrong in a, of which b has 10 right; 8 right, of which b has one wrong."""
    found = get(view, "compare", a="a", b="b")
    (metric,) = found["metrics"]
    assert (metric["name"], metric["metric"], metric["steps"]) == ("test", "accuracy", [6, 6])
    assert (metric["gained"], metric["lost"], metric["problems"]) == (10, 1, 20)
    assert metric["p"] == 2 * (1 + 11) / 2**11  # McNemar
    assert metric["value"] == pytest.approx(9 / 20)
    assert (found["set"], found["total"], found["config"]) == ("test", 11, [])
    assert [(one["problem"], one["change"]) for one in found["problems"]] == [
        *((at, "gained") for at in range(10)),
        (19, "lost"),
    ]
    first = found["problems"][0]
    assert (first["question"], first["gold"]) == ("What is 0 + 1?", "1")
    assert [first[side][0]["outcome"] for side in "ab"] == ["wrong", "right"]
    page = get(view, "compare", a="a", b="b", show="", offset=18, limit=5)
    assert (page["total"], [one["problem"] for one in page["problems"]]) == (20, [18, 19])
    assert get(view, "compare", a="a", b="b", show="lost")["total"] == 1


def test_runs_that_must_not_be_compared_show_their_configs(view: TestClient) -> None:
    found = get(view, "compare", a="a", b="tools")
    assert found["refused"] == "they have no evaluation in common"
    assert ["environment.max_turns", "–", "4"] in found["config"]
    assert "gsm8k" in str(get(view, "compare", a="alone", b="a"))
