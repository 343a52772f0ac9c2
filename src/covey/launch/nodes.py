"""The nodes of a run: which one this is, how they find each other, and how they notice the end or loss of another.

They meet in the run's log folder, which all share. The first node writes the id of its attempt. Each other node answers
with a number of its own, its address and free ports, and then the first one writes what all need. A file of an earlier
attempt lacks these numbers, so it is never taken for one of this. Later each node's reaper (`guard.py`) writes to a
file every second, until no process of the launch is left there, and its launcher to another one when it is asked to
stop, and when it ends. The first node reads those of the others, and they the first's. The first one makes these files
for all: NFS remembers for half a minute that a file is not there.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey._version import __version__
from covey.config import Config
from covey.errors import ConfigError
from covey.launch.machine import LaunchError, Place, free_port
from covey.launch.plan import Ports
from covey.launch.slurm import write_private

_EVERY_SECONDS = 1.0
_LOST_SECONDS, _FIRST_SECONDS = 15.0, 90.0
"""A node that has written nothing for so long, or nothing at all, is lost."""
ASKED, ENDED, FAILED = "was asked to stop", "has ended", "has failed"
"""What a launcher tells those of other nodes."""
_MAIN_PORT = 29500


@dataclass(frozen=True, slots=True)
class Seat:
    """The place that a scheduler, or its starter, gives to this launcher."""

    rank: int = 0
    nodes: int = 1
    master: str | None = None
    """The address of the first node; None where that one knows it itself."""
    port: int | None = None
    """The port of the rendezvous, where it is given."""
    own: str | None = None
    """The address of this node, where it is given."""


_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "nodes": ("PET_NNODES", "NNODES", "SKYPILOT_NUM_NODES", "SLURM_STEP_NUM_NODES"),
    "rank": ("PET_NODE_RANK", "NODE_RANK", "SKYPILOT_NODE_RANK", "SLURM_NODEID"),
    "master": ("PET_MASTER_ADDR", "MASTER_ADDR", "SKYPILOT_NODE_IPS"),
    "port": ("PET_MASTER_PORT", "MASTER_PORT"),
}
"""What torchrun, SkyPilot and Slurm call them."""


def this_seat(config: Config, environ: Mapping[str, str] = os.environ) -> Seat:
    """The place of this launcher: by the keys `launch.node_rank` and `launch.master`, else by variables.

    Raises:
        ConfigError: they contradict each other or `launch.nodes`, or say too little.
    """
    launch = config.launch
    if "SLURM_STEP_NODELIST" not in environ:  # in a batch script they are of its first node alone
        environ = {name: value for name, value in environ.items() if not name.startswith("SLURM_")}
    rank = launch.node_rank
    source, nodes = _said("nodes", environ) if rank is None else ("", None)
    rank = rank if rank is not None else _said("rank", environ)[1]
    if nodes not in (None, launch.nodes) or (launch.nodes == 1 and rank):
        what = f"{source}={nodes} says that this runs on {nodes}" if nodes else f"this is node {rank}, counted from 0"
        raise ConfigError(
            f"launch.nodes={launch.nodes}, but {what}. Set launch.nodes to the number of nodes, the same on each."
        )
    if launch.nodes == 1:
        return Seat(port=launch.main_process_port)
    if rank is None:
        raise ConfigError(
            f"launch.nodes={launch.nodes}, and nothing says which node this is. Start one `covey launch` on each node "
            f"with launch.node_rank=0 to {launch.nodes - 1} and launch.master=HOST, the address of node 0; or by a "
            "scheduler that sets the variables of torchrun, SkyPilot or Slurm; or with `covey launch --slurm`."
        )
    if rank >= launch.nodes:
        raise ConfigError(
            f"This is node {rank}, and with launch.nodes={launch.nodes} they count from 0 to {launch.nodes - 1}."
        )
    keyed: tuple[str | None, int | None] | None = None if launch.master is None else _host_and_port(launch.master)
    master, port = keyed or (_said("master", environ)[1], _said("port", environ)[1])
    main = launch.main_process_port
    if port and main and port != main:
        raise ConfigError(f"The port of the rendezvous is {port} and launch.main_process_port={main}: leave one out.")
    own = environ.get("SLURMD_NODENAME")
    if master is None and own is None:
        raise ConfigError(
            f"launch.nodes={launch.nodes}: give launch.master=HOST, the address by which the others reach node 0 (or "
            "MASTER_ADDR)."
        )
    return Seat(rank, launch.nodes, master, port or main, own)


def _host_and_port(text: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    if not host or (colon and not (port.isdigit() and 0 < int(port) < 65536)):
        raise ConfigError(f"launch.master={text} is not a HOST, or HOST:PORT with a port from 1 to 65535.")
    return host.strip("[]"), int(port) if port else None


def _said(what: str, environ: Mapping[str, str]) -> tuple[str, Any]:
    """The variable that says it and its value; a `ConfigError` if others say something else."""
    found: dict[str, Any] = {}
    for name in _VARIABLES[what]:
        text = environ.get(name, "").split()
        if text:
            found[name] = text[0]
        if text and what != "master":
            first, _, last = text[0].partition(":")  # torchrun's least and most
            if not first.isdigit() or last not in ("", first):
                raise ConfigError(f"{name}={text[0]} is not a number that `covey launch` can use.")
            found[name] = int(first)
    if len(set(found.values())) > 1:
        shown = " and ".join(f"{name}={value}" for name, value in found.items())
        raise ConfigError(f"{shown} contradict each other. Unset what does not belong to this run.")
    return next(iter(found.items()), ("", None))


class Nodes:
    """The launchers of one run on several nodes, seen from one of them. With one node there is nothing to see."""

    def __init__(self, seat: Seat, logs: Path, waiting: Callable[[str, list[str]], None]) -> None:
        """Prepare it.

        Args:
            logs: the run's log folder.
            waiting: shows what is waited for.
        """
        self._seat, self._folder, self._waiting = seat, logs / "nodes", waiting
        self._attempt = self._number = secrets.token_hex(8)
        self._agreed: dict[str, Any] = {}
        self._missing: list[int] = []
        self._heard = dict.fromkeys((0,) if seat.rank else range(1, seat.nodes), ("", 0.0))
        self._looked, self._problem, self._trouble = 0.0, "", ""
        self.orderly = False
        """Whether training can still stop with a checkpoint, when there is a `problem`."""

    def meet(self, ports: Ports, settings: str, seconds: float, servers: int = 1) -> tuple[Place, Ports]:
        """Wait until all nodes are there, and on all but the first until that has called `begin`.

        Args:
            ports: those wanted.
            settings: the config as text, which must be the same on all nodes.
            seconds: how long to wait.
            servers: most vLLM servers on a node.

        Returns:
            The addresses of the nodes, and ports that are free on those that use them.

        Raises:
            LaunchError: a node did not come in time, has other settings or another version, or came twice.
        """
        seat, own = self._seat, list[int]()
        for _ in range(servers):
            own.append(free_port(own[-1] + 1 if own else ports.server, own))
        group = free_port(ports.group, own)
        if seat.nodes == 1:
            main = free_port(seat.port or _MAIN_PORT, {*own, group})
            return Place(), Ports(own[0], group, main, (tuple(own),))
        mine = {"number": self._number, "version": __version__, "settings": settings, "servers": own, "group": group}
        self._folder.mkdir(parents=True, exist_ok=True)
        for file in self._folder.glob("[!.]*") if seat.rank == 0 else ():
            file.unlink(missing_ok=True)  # of an earlier attempt
        began, ask = time.monotonic(), self._gather if seat.rank == 0 else self._join
        try:
            while not (agreed := ask(mine)):
                if time.monotonic() > began + seconds:
                    raise LaunchError(
                        f"Waited {seconds:g} s (launch.start_timeout) for {self._awaited()}. Were all nodes started, "
                        f"with the same run_name? launch.log_dir must be a folder that they share.{self._trouble}"
                    )
                list(self._folder.iterdir())  # so that NFS looks again for files that were not there
                self._waiting(f"waiting for {self._awaited()} ({time.monotonic() - began:.0f} s)", [])
                time.sleep(_EVERY_SECONDS / 4)
        except LaunchError as error:
            if seat.rank == 0:
                self._write("attempt", {"attempt": self._attempt, "error": str(error)})
            raise
        finally:
            self._waiting("", [])
        if seat.port not in (None, agreed["main"]):
            raise LaunchError(f"The rendezvous is at port {agreed['main']} of node 0, and here {seat.port} is given.")
        self._agreed, master = agreed, seat.master or agreed["hosts"][0]
        return Place(seat.rank, (master, *agreed["hosts"][1:])), Ports(
            agreed["servers"][-1][0], agreed["group"], agreed["main"], tuple(map(tuple, agreed["servers"]))
        )

    def begin(self) -> None:
        """Of the first node: let the others begin, once what they read is written."""
        if self._agreed and self._seat.rank == 0:
            for node in range(self._seat.nodes):
                self._file(f"{self._attempt}-{node}").touch()
                self._write(f"{self._attempt}-{node}-told", [])
            self._write("attempt", self._agreed)

    def _gather(self, mine: dict[str, Any]) -> dict[str, Any]:
        """Of the first node: what all have agreed on, once the others have answered."""
        seat, master = self._seat, self._seat.master or self._seat.own
        call = {"attempt": self._attempt, "master": master}
        if not self._file("attempt").exists():
            self._write("attempt", call)
        there = [mine] + [_read(self._file(node)) for node in range(1, seat.nodes)]
        self._missing = [node for node in range(1, seat.nodes) if there[node].get("attempt") != self._attempt]
        if self._missing:
            return {}
        for node, other in enumerate(there):
            self._compare(node, other, mine)
        start = _MAIN_PORT + int(self._attempt, 16) % 2000  # two runs that start at once look at different ports
        return call | {
            "hosts": [master, *(other["host"] for other in there[1:])],
            "numbers": [other["number"] for other in there],
            "main": seat.port or free_port(start),
            "servers": [other["servers"] for other in there],
            "group": mine["group"],  # the trainer's, which the servers connect to
        }

    def _join(self, mine: dict[str, Any]) -> dict[str, Any]:
        """Of the other nodes: the same, once the first one has counted this one in."""
        called, rank = _read(self._file("attempt")), self._seat.rank
        if not called or called["attempt"] != self._attempt:
            if called and "numbers" not in called and "error" not in called:  # else one that began without this node
                master = self._seat.master or called["master"]
                try:
                    host = self._seat.own or _address_towards(master)
                except OSError as error:  # a name that is not known yet, as of a pod that is starting
                    self._trouble = f" From here {master} cannot be reached: {error.strerror}."
                    return {}
                self._attempt = called["attempt"]
                self._write(rank, mine | {"attempt": self._attempt, "host": host})
            return {}
        if "error" in called:
            raise LaunchError(f"Node 0 has ended: {called['error']}")
        if "numbers" in called and called["numbers"][rank : rank + 1] != [self._number]:
            raise LaunchError(f"Another launcher has joined this run as node {rank}: each needs a launch.node_rank.")
        return called if "numbers" in called else {}

    def _compare(self, node: int, other: dict[str, Any], mine: dict[str, Any]) -> None:
        if other["version"] != mine["version"]:
            raise LaunchError(f"Node {node} has Covey {other['version']}, and node 0 {mine['version']}: install one.")
        theirs, ours = (set(one["settings"].splitlines()) for one in (other, mine))
        if differing := sorted(theirs ^ ours):
            keys = dict.fromkeys(line.partition(":")[0].strip() for line in differing)
            raise LaunchError(
                f"Node {node} was started with other settings than node 0 ({', '.join(keys)}): give all nodes the same "
                "command, but for launch.node_rank."
            )

    def _awaited(self) -> str:
        if self._seat.rank:
            return f"node 0, in {self._folder}"
        return f"node{'s' * (len(self._missing) > 1)} {', '.join(map(str, self._missing))}"

    # -- while it runs

    @property
    def beat(self) -> Path | None:
        """The file in which this node shows that it is alive; None with one node."""
        return None if self._seat.nodes == 1 else self._file(f"{self._attempt}-{self._seat.rank}")

    def tell(self, what: str, code: int) -> None:
        """Tell the other nodes that this one was asked to stop, has ended or has failed, and its exit code."""
        if self._seat.nodes > 1:
            with suppress(OSError):  # a full disk ends the run by itself
                self._write(f"{self._attempt}-{self._seat.rank}-told", [what, code])

    def first_ended(self) -> int | None:
        """The exit code of training, once it has ended on the first node."""
        what, code = self._told(0)
        return code if self._seat.rank and what in (ENDED, FAILED) else None

    def problem(self) -> str:
        """Why the run cannot go on: a node has failed, is lost, or was asked to stop. Else empty."""
        now = time.monotonic()
        if self._problem or now < self._looked + _EVERY_SECONDS:
            return self._problem
        late, self._looked = now - self._looked > _LOST_SECONDS, now  # this launcher may itself have been suspended
        for node, (text, since) in self._heard.items():
            what, code = self._told(node)
            try:
                found = self._file(f"{self._attempt}-{node}").read_text(encoding="utf-8")
            except FileNotFoundError:
                found = text
            except OSError:  # says nothing about that node
                found, since = text, now
            if (what == ENDED and code == 0) or late or found != text:
                since = now
            self._heard[node] = found, since
            if what == FAILED:
                self._problem, self.orderly = f"node {node} has failed with exit code {code}.", False
            elif found == "gone" or (what and code):
                self._problem, self.orderly = f"node {node} {what or 'is stopping'}.", True
            elif now - since > (_LOST_SECONDS if found else _FIRST_SECONDS):
                self._problem = f"node {node} is lost: it has shown no sign of life for {now - since:.0f} s."
        if self._problem and self._seat.rank == 0:
            self.tell(ASKED if self.orderly else FAILED, 1)  # the others see it while training ends here
        return self._problem

    def _told(self, node: int) -> tuple[str, int]:
        try:
            what, code = json.loads(self._file(f"{self._attempt}-{node}-told").read_bytes())
        except (OSError, ValueError):  # nothing yet
            return "", 0
        return what, code

    def _file(self, name: object) -> Path:
        return self._folder / str(name)

    def _write(self, name: object, content: Any) -> None:
        write_private(self._file(name), json.dumps(content))


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_bytes()))
    except (OSError, ValueError):  # not there, or being replaced
        return {}


def _address_towards(host: str) -> str:
    """The address of this machine by which one on the way to `host` sees it; an `OSError` if there is no way."""
    ways = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    family, _, _, _, address = min(ways, key=lambda way: way[0] != socket.AF_INET)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])
