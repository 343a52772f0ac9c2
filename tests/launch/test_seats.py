"""Which node this is, by keys or variables; and how the launchers of several nodes meet in a folder."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from covey.config import load
from covey.errors import CoveyError
from covey.launch.nodes import Nodes, Seat, this_seat
from covey.launch.plan import Ports
from launched import until

KEYS = ("launch.node_rank=1", "launch.master=a:4000")
TORCHRUN = {"PET_NNODES": "3", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "4000"}
SKYPILOT = {"SKYPILOT_NUM_NODES": "3", "SKYPILOT_NODE_RANK": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3\n"}
STEP = {"SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NODELIST": "n[1-3]", "SLURM_NODEID": "1", "SLURMD_NODENAME": "n2"}


@pytest.mark.parametrize(
    ("words", "environ", "seat"),
    [
        (KEYS, {}, Seat(1, 3, "a", 4000)),
        (("launch.node_rank=1", "launch.master='[fe80::1]:4000'"), {}, Seat(1, 3, "fe80::1", 4000)),
        (("launch.node_rank=1", "launch.master=fe80::1"), {}, Seat(1, 3, "fe80::1")),
        ((), TORCHRUN, Seat(1, 3, "a", 4000)),
        ((), {"NODE_RANK": "1", "MASTER_ADDR": "a"}, Seat(1, 3, "a")),
        ((), {**TORCHRUN, "PET_NNODES": "3:3"}, Seat(1, 3, "a", 4000)),
        ((), SKYPILOT, Seat(2, 3, "10.0.0.1")),
        ((), STEP, Seat(1, 3, None, None, "n2")),
        ((), {**STEP, "MASTER_ADDR": "a", "MASTER_PORT": "4000"}, Seat(1, 3, "a", 4000, "n2")),
        (KEYS, {**SKYPILOT, **TORCHRUN, "MASTER_ADDR": "b"}, Seat(1, 3, "a", 4000)),  # keys beat variables
        (("launch.main_process_port=4000",), {"NODE_RANK": "1", "MASTER_ADDR": "a"}, Seat(1, 3, "a", 4000)),
    ],
)
def test_where_a_launcher_is(words: tuple[str, ...], environ: dict[str, str], seat: Seat) -> None:
    assert this_seat(load(["launch.nodes=3", *words]), environ) == seat


@pytest.mark.parametrize("environ", [{}, {"NODE_RANK": "0", "MASTER_ADDR": "a"}, {"SLURM_STEP_NUM_NODES": "1"}])
def test_one_node_needs_nothing(environ: dict[str, str]) -> None:
    assert this_seat(load(), environ) == Seat()


@pytest.mark.parametrize(
    ("words", "environ", "message"),
    [
        (("launch.nodes=3",), {}, "nothing says which node this is"),
        (("launch.nodes=3",), {"SLURM_NODEID": "0", "SLURM_NNODES": "3"}, "nothing says which node"),  # a batch script
        (("launch.nodes=3", "launch.node_rank=3", "launch.master=a"), {}, "they count from 0 to 2"),
        (("launch.nodes=3", "launch.node_rank=1"), {}, "give launch.master=HOST"),
        (("launch.nodes=3", "launch.node_rank=1", "launch.master=a:x"), {}, "launch.master=a:x is not a HOST"),
        (("launch.nodes=3", "launch.node_rank=1", "launch.master=a:70000"), {}, "from 1 to 65535"),
        (("launch.nodes=3", "launch.main_process_port=5", *KEYS), {}, "4000 and launch.main_process_port=5"),
        (("launch.nodes=2",), TORCHRUN, "PET_NNODES=3 says that this runs on 3"),
        ((), TORCHRUN, "launch.nodes=1, but PET_NNODES=3"),
        ((), {"NODE_RANK": "2"}, "launch.nodes=1, but this is node 2"),
        (("launch.nodes=3",), {**TORCHRUN, "NODE_RANK": "2"}, "PET_NODE_RANK=1 and NODE_RANK=2 contradict each other"),
        (
            ("launch.nodes=3",),
            {**STEP, "MASTER_ADDR": "a", "PET_MASTER_ADDR": "b"},
            "PET_MASTER_ADDR=b and MASTER_ADDR",
        ),
        (("launch.nodes=3",), {**TORCHRUN, "PET_NNODES": "2:4"}, "PET_NNODES=2:4 is not a number"),
    ],
)
def test_what_contradicts_itself_or_says_too_little(
    words: tuple[str, ...], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(CoveyError, match=message.replace("[", "\\[")):
        this_seat(load(words), environ)


Meet = Callable[..., Any]


@pytest.fixture
def meet(tmp_path: Path) -> Meet:
    def call(rank: int, *, nodes: int = 3, settings: str = "seed: 1\n", seconds: float = 20.0, port: Any = None) -> Any:
        one = Nodes(Seat(rank, nodes, "127.0.0.1", port), tmp_path, lambda text, lines: None)
        wanted = Ports(random.randrange(20_000, 40_000), random.randrange(40_000, 60_000))
        place, ports = one.meet(wanted, settings, seconds)
        one.begin()
        return place, ports, one

    return call


def test_nodes_meet_in_any_order_and_agree(meet: Meet, tmp_path: Path) -> None:
    """Also where the files of an earlier attempt are still there."""
    stale = tmp_path / "nodes"
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            others = [pool.submit(meet, rank) for rank in (2, 1)]
            found = [pool.submit(meet, 0), *reversed(others)]
            places, ports, nodes = zip(*(one.result() for one in found), strict=True)
        assert [place.node for place in places] == [0, 1, 2]
        assert {place.hosts for place in places} == {("127.0.0.1",) * 3}
        assert len(set(ports)) == 1
        assert len({ports[0].server, ports[0].group, ports[0].main}) == 3
        attempts = {json.loads((stale / "attempt").read_text())["attempt"]}
        assert {one.beat.name for one in nodes} == {f"{attempt}-{rank}" for attempt in attempts for rank in range(3)}
    assert (stale / "1").stat().st_mode & 0o077 == 0


def test_one_node_meets_nobody(meet: Meet, tmp_path: Path) -> None:
    place, ports, one = meet(0, nodes=1, port=12345)
    assert place.hosts == ("127.0.0.1",)
    assert ports.main == 12345
    assert one.beat is None
    assert one.problem() == ""
    assert list(tmp_path.iterdir()) == []


def test_other_settings_are_named(meet: Meet) -> None:
    with ThreadPoolExecutor(2) as pool:
        started = [pool.submit(meet, 0, nodes=2), pool.submit(meet, 1, nodes=2, settings="seed: 2\n")]
        errors = [str(done.exception()) for done in started]
    assert "Node 1 was started with other settings than node 0 (seed)" in errors[0]
    assert errors[1] == f"Node 0 has ended: {errors[0]}"


def test_a_second_launcher_for_one_node_is_told(meet: Meet, tmp_path: Path) -> None:
    answer = tmp_path / "nodes" / "1"
    with ThreadPoolExecutor(4) as pool:
        started = [pool.submit(meet, rank) for rank in (0, 1)]
        until(answer.exists)
        before = answer.read_text()
        started.append(pool.submit(meet, 1))
        until(lambda: answer.read_text() != before)
        started.append(pool.submit(meet, 2))
        errors = [done.exception() for done in started]
    assert [error is None for error in errors] == [True, False, True, True]
    assert "Another launcher has joined this run as node 1" in str(errors[1])


def test_nodes_that_do_not_come(meet: Meet) -> None:
    with pytest.raises(CoveyError, match=r"Waited 0.6 s \(launch.start_timeout\) for nodes 1, 2"):
        meet(0, seconds=0.6)
    with pytest.raises(CoveyError, match=r"Waited 0.6 s .* for node 0, in "):  # that attempt is over
        meet(1, seconds=0.6)
