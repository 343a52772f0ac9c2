"""The processes of environments: what they share and load, how many there may be, and forks of the trainer."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

import hostile_environments
from completed import completed
from covey.environments.contract import EnvironmentSource
from covey.environments.runner import EnvironmentRunner
from covey.environments.workers.calls import ToolError
from covey.errors import EnvironmentSetupError
from game_environments import source

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes and files as Linux has them")
HOSTILE = hostile_environments.__file__


@linux
def test_what_the_code_starts_when_imported_stays_as_long_as_the_runner(tmp_path: Path) -> None:
    path, pid = tmp_path / "code.py", tmp_path / "pid"
    start = f"Path({str(pid)!r}).write_text(str(subprocess.Popen(['sleep', '1000']).pid))"
    path.write_text(f"import subprocess\nfrom pathlib import Path\n{start}\n" + Path(HOSTILE).read_text())
    with EnvironmentRunner({None: EnvironmentSource(f"{path}:Obedient")}) as runner:
        (environment,) = runner.instances([None])
        environment.reset()
        assert "error" in environment.do("exit")
        environment.reset()
        assert Path(f"/proc/{pid.read_text()}").exists()
    assert not Path(f"/proc/{pid.read_text()}").exists()


@linux
def test_neither_the_fork_server_nor_its_processes_load_torch(games: Path) -> None:
    code = (
        "import sys; from covey.environments.workers.worker import EnvironmentWork\n"
        "from covey.environments.contract import EnvironmentSource\n"
        "from covey.environments.runner import FINDERS\n"
        f"EnvironmentWork({{None: EnvironmentSource({f'{games}:Game'!r})}}, (), FINDERS, None).preload()\n"
        "print(sorted({'torch', 'transformers', 'trl'} & set(sys.modules)))"
    )
    done = completed([sys.executable, "-c", code], check=True)
    assert done.stdout == "[]\n"


def test_two_runners_do_not_meet(games: Path) -> None:
    with EnvironmentRunner({None: source(games, "Game", top=1)}) as first:
        (one,) = first.instances([None])
        with EnvironmentRunner({None: source(games, "Game", top=2)}) as second:
            (two,) = second.instances([None])
            assert (one.top, two.top) == (1, 2)
            assert not set(first.pids) & set(second.pids)
        with pytest.raises(EnvironmentSetupError, match="were closed"):
            two.rules(page=1)
        assert one.rules(page=1) == "page 1"


@linux
def test_a_fork_of_the_trainer_has_processes_of_its_own(runner: EnvironmentRunner) -> None:
    """As the workers of a data loader are."""
    (environment,) = runner.instances(["game"])
    environment.reset(mine=True)
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            environment.reset(theirs=True)
            os.write(write, json.dumps([environment.row, runner.tools[0].submit().done()]).encode())
            runner.close()
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as told:
        assert json.loads(told.read())[0] == {"theirs": True}
    assert environment.row == {"mine": True}
    assert environment.rules(page=3) == "page 3"


@linux
def test_more_instances_than_open_files_raise_the_soft_limit(games: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 40, hard))
    try:
        with EnvironmentRunner({None: source(games, "Game")}) as runner:
            environments = runner.instances([None] * 24)  # four files each
            for environment in environments:
                environment.covey.begin_reset({"a": 1})
            assert [environment.reset() for environment in environments] == [None] * 24
            assert [environment.covey.outcome for environment in environments] == [None] * 24
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@linux
@pytest.mark.slow
def test_hundreds_of_instances(games: Path) -> None:
    with EnvironmentRunner({None: source(games, "Game")}, timeout=60.0) as runner:
        environments = runner.instances([None] * 256)
        for number, environment in enumerate(environments):
            environment.covey.begin_reset({"number": number}, number // 8)
        assert [environment.reset() for environment in environments] == [None] * 256
        calls = [environment.rules.submit(number) for number, environment in enumerate(environments)]
        assert [call.result(60) for call in calls] == [f"page {number}" for number in range(256)]
        assert [environment.row["number"] for environment in environments] == list(range(256))
        assert len(runner.pids) == 257


@linux
def test_a_system_without_processes_is_an_error_after_a_while(games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from covey.environments.workers import supervisor
    from covey.workers.fork_server import ForkServer, NoProcessError

    def no_fork(self: ForkServer) -> Any:
        raise NoProcessError("Resource temporarily unavailable")

    monkeypatch.setattr(supervisor, "_GIVE_UP_SECONDS", 0.2)
    with EnvironmentRunner({None: source(games, "Game")}) as runner:
        (environment,) = runner.instances([None])
        environment.reset()
        monkeypatch.setattr(ForkServer, "fork", no_fork)
        other = runner.instances([None, None])[1]
        with pytest.raises(EnvironmentSetupError, match=r"Resource temporarily unavailable\. 1 run, one for"):
            other.reset()
        assert environment.rules(page=1) == "page 1"
        with pytest.raises(ToolError):
            environment.rules(1, 2)
