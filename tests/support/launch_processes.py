"""Processes for the tests of the launcher: a launcher, and its fake server and trainer. Nothing loads torch.

    launcher FOLDER OPTIONS     runs the supervisor on a server and a trainer in FOLDER; OPTIONS is JSON
    server PORT BEHAVIOUR       answers /health
    trainer RUN STEPS BEHAVIOUR writes a row a step into RUN/metrics.jsonl; SIGTERM ends it with a "checkpoint"

Server and trainer each have a child that ignores SIGTERM, the trainer's in a session of its own: what vLLM's engine
processes and a reward's child processes may do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

IGNORES_SIGTERM = ("sh", "-c", "trap '' TERM; exec sleep 600")


def launcher(folder: Path, options: dict[str, Any]) -> int:
    from covey.cli.streams import protect_streams
    from covey.errors import CoveyError
    from covey.launch.machine import FINISH_FILE, STACKS_FILE
    from covey.launch.nodes import ENDED, FAILED, Nodes, Seat
    from covey.launch.plan import LaunchPlan, Ports, Process, Server
    from covey.launch.process import become_subreaper
    from covey.launch.supervise import Ending, LaunchConsole, Limits, Supervisor

    run, logs, port = folder / "run", folder / "logs", options["port"]
    node, separate = options.get("node", 0), "node" in options  # separate: node 0 trains and node 1 serves
    me = (sys.executable, __file__)
    environment = {FINISH_FILE: str(logs / "finish-{rank}.json"), STACKS_FILE: str(logs / "stacks-{rank}.txt")}
    words = (*me, "trainer", str(run), str(options.get("steps", 5)), options.get("trainer", "good"))
    processes = [Process("trainer", 0, (), words, environment, logs / "trainer.log")]
    if options.get("both"):  # each trains, in a run directory of its own
        words = (*me, "trainer", str(folder / "run1"), str(options.get("steps", 5)), options.get("trainer", "good"))
        processes.append(Process("trainer", 1, (), words, environment, logs / "trainer-1.log"))
    servers: tuple[Server, ...] = ()
    if options.get("server"):
        for number in range(options.get("servers", 1)):
            at = port + number
            servers += (Server(f"http://127.0.0.1:{at}", "127.0.0.1", at, port + 10, "m", is_ours=True),)
            command = (*me, "server", str(at), options["server"])
            processes.insert(number, Process("server", int(separate), (), command, {}, logs / "server.log", number))
    plan = LaunchPlan(run, logs, 1 + separate, 0, 1, tuple(processes), servers, None, ())
    become_subreaper()
    protect_streams()  # as every command does
    with LaunchConsole(logs / f"launcher-{node}.log") as console:
        limits = Limits(**options.get("limits", {}))
        nodes = Nodes(Seat(node, 1 + separate, "127.0.0.1"), logs, console.waiting)
        ending = Ending(1)
        try:
            nodes.meet(Ports(), "", 60.0)
            nodes.begin()
            ending = Supervisor(plan, node, limits, console, nodes).run()
        except CoveyError as error:
            print(f"covey: {error}", file=sys.stderr)
            return error.exit_code
        finally:
            nodes.tell(ENDED if ending.code == 0 or ending.clean else FAILED, ending.code)
    return ending.code


def server(port: int, behaviour: str) -> int:
    print("loading the model", flush=True)
    if behaviour == "broken":
        print("RuntimeError: CUDA out of memory", file=sys.stderr, flush=True)
        return 7
    subprocess.Popen(IGNORES_SIGTERM)
    if behaviour == "slow":  # a real server takes longer to load a model than training takes to notice its loss
        time.sleep(2)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if behaviour == "never ready" else 200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    ThreadingHTTPServer.allow_reuse_address = True
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
    return 0


def trainer(run: Path, steps: int, behaviour: str, words: list[str]) -> int:
    from covey.cli import process

    run.mkdir(exist_ok=True)
    with (run / "starts.jsonl").open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), "words": words}) + "\n")
    subprocess.Popen(IGNORES_SIGTERM, start_new_session=True)
    again = "resume=auto" in words
    return process.supervised(lambda: _train(run, steps, behaviour, again))


def _train(run: Path, steps: int, behaviour: str, again: bool) -> int:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    done = len((run / "metrics.jsonl").read_text().splitlines()) if (run / "metrics.jsonl").exists() else 0
    for step in range(done + 1, steps + 1):
        if behaviour == "hangs" and step == 3 and not again:
            _wait_for_ever()
        if behaviour == "hangs twice" and step == 3:
            _wait_for_ever()
        if behaviour == "fails" and step == 3:
            print("covey: the data are gone.", file=sys.stderr)
            return 3
        if behaviour == "crashes" and step == 3:
            raise RuntimeError("shapes do not match")
        if behaviour == "killed" and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "needs server" and not _answers(int((run / "port").read_text())):
            raise ConnectionError("the server is gone")
        time.sleep(0.1)
        if behaviour == "needs server late":
            time.sleep(0.4)
            if not _answers(int((run / "port").read_text())):
                raise ConnectionError("the server is gone")
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step}) + "\n")
        print(f"step {step}", flush=True)
        if asked:
            (run / "checkpoint").write_text(str(step))
            return 128 + asked[0]
    return 0


def _wait_for_ever() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def _answers(port: int) -> bool:
    from covey.launch.supervise import answers

    return answers(f"http://127.0.0.1:{port}/health")


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "launcher":
        sys.exit(launcher(Path(rest[0]), json.loads(rest[1])))
    if role == "server":
        sys.exit(server(int(rest[0]), rest[1]))
    sys.exit(trainer(Path(rest[0]), int(rest[1]), rest[2], rest[3:]))
