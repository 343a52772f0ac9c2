"""Several vLLM servers behind one client: order, whole groups, and servers that die, are stale, slow, new or gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from completion_server import choice
from covey.errors import EngineError
from covey.rollout import SamplingSettings
from covey.rollout.vllm.server_engine import ServerEngine
from covey.rollout.weight_folder import write_folder
from covey.training.trl import engine_client
from covey.training.trl.engine_client import EngineClient
from covey.training.trl.engine_clients import EngineClients, connect, cut
from engine_server import EngineServer, engine_servers, written

PROMPTS = [[number, 7] for number in range(1, 11)]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl.generation.vllm_client.is_vllm_available", lambda: True)


@pytest.fixture
def servers() -> Iterator[list[EngineServer]]:
    with engine_servers(3) as made:
        yield made


@pytest.fixture
def client(servers: list[EngineServer]) -> EngineClients:
    made = connect([one.address for one in servers])
    assert isinstance(made, EngineClients)
    made.init_communicator("cpu")
    _sync(made, 1.0)
    return made


def _sync(client: Any, value: float) -> None:
    client.reconnect()
    client.update_named_params([], iter([("weight", torch.full((2,), value))]))
    client.reset_prefix_cache()


def _expected(n: int) -> list[list[int]]:
    return [written(prompt, number) for prompt in PROMPTS for number in range(n)]


@pytest.mark.parametrize("parts", range(1, 14))
@pytest.mark.parametrize(("start", "stop"), [(0, 10), (3, 4), (5, 5)])
def test_parts_are_contiguous_and_equal(start: int, stop: int, parts: int) -> None:
    found = list(cut(start, stop, parts))
    assert [row for first, last in found for row in range(first, last)] == list(range(start, stop))
    sizes = [last - first for first, last in found]
    assert len(found) == min(parts, stop - start)
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_one_address_is_one_client(servers: list[EngineServer]) -> None:
    made = connect([servers[0].address])
    assert isinstance(made, EngineClient)
    assert made.live == [made]
    assert made.take_metrics() == {}
    assert connect(servers[1].address).base_url == servers[1].address


def test_groups_stay_whole_and_completions_in_order(servers: list[EngineServer], client: EngineClients) -> None:
    found = client.generate(PROMPTS, n=2)
    assert found["completion_ids"] == _expected(2)
    assert found["prompt_ids"] == PROMPTS
    assert [len(row) for row in found["logprobs"]] == [3] * 20
    assert [one.prompts() for one in servers] == [PROMPTS[:3], PROMPTS[3:6], PROMPTS[6:]]
    assert all(body["n"] == 2 for one in servers for body in one.asked("/v1/completions"))
    metrics = client.take_metrics()
    assert [metrics[f"rollout/server_{number}/tokens"] for number in range(3)] == [18.0, 18.0, 24.0]
    assert all(metrics[f"rollout/server_{number}/seconds"] > 0 for number in range(3))
    assert client.take_metrics()["rollout/server_2/tokens"] == 0.0


def test_a_slow_server_is_seen(servers: list[EngineServer], client: EngineClients) -> None:
    servers[1].seconds = 0.3
    client.generate(PROMPTS, n=1)
    metrics = client.take_metrics()
    assert metrics["rollout/server_1/seconds"] >= 0.3
    assert max(metrics["rollout/server_0/seconds"], metrics["rollout/server_2/seconds"]) < 0.3


def test_fewer_prompts_than_servers(servers: list[EngineServer], client: EngineClients) -> None:
    assert client.generate(PROMPTS[:2], n=1)["completion_ids"] == _expected(1)[:2]
    assert sorted(len(one.prompts()) for one in servers) == [0, 1, 1]


@pytest.mark.parametrize("dead", [[0], [1], [0, 2]])
def test_the_part_of_a_dead_server_is_asked_of_the_others(
    servers: list[EngineServer], client: EngineClients, caplog: pytest.LogCaptureFixture, dead: list[int]
) -> None:
    for number in dead:
        servers[number].answers_left = 0
    found = client.generate(PROMPTS, n=2)
    assert found["completion_ids"] == _expected(2)
    assert client.take_lost() is None
    assert len(client.live) == 3 - len(dead)
    assert caplog.text.count("was lost: it did not answer") == len(dead)
    metrics = client.take_metrics()
    assert [metrics[f"rollout/server_{n}/lost"] for n in range(3)] == [float(n in dead) for n in range(3)]
    assert client.generate(PROMPTS, n=1)["completion_ids"] == _expected(1)  # without asking them
    assert all(len(servers[number].asked("/v1/completions")) <= 2 for number in dead)


def test_all_are_dead(servers: list[EngineServer], client: EngineClients) -> None:
    for server in servers:
        server.answers_left = 0
    assert client.generate(PROMPTS, n=1)["completion_ids"] == []
    assert client.take_lost() is not None


def test_a_restarted_server_has_no_weights_until_the_next_sync(
    servers: list[EngineServer], client: EngineClients
) -> None:
    """Its completions do not count, and then it is connected anew."""
    servers[2].instance, servers[2].weights = "new", {}
    assert client.generate(PROMPTS, n=1)["completion_ids"] == _expected(1)
    assert [one.base_url for one in client.live] == [one.address for one in servers[:2]]
    before = len(servers[2].asked("/collective_rpc"))
    _sync(client, 2.0)
    assert [one.base_url for one in client.live] == [one.address for one in servers]
    assert len(servers[2].asked("/collective_rpc")) == before + 1
    assert [one.weights for one in servers] == [{"weight": 4.0}] * 3
    servers[2].calls.clear()
    client.generate(PROMPTS, n=1)
    assert servers[2].prompts() == PROMPTS[6:]


def test_a_server_that_is_gone_is_left_out_until_it_is_back(
    servers: list[EngineServer], client: EngineClients, caplog: pytest.LogCaptureFixture
) -> None:
    port = servers[1].server_port
    servers[1].stop()
    _sync(client, 2.0)
    assert client.take_lost() is None
    assert f"{servers[1].address} does not answer: 2 of 3 generate until it does" in caplog.text
    assert client.generate(PROMPTS, n=1)["completion_ids"] == _expected(1)
    servers[1] = EngineServer("later", port=port)
    _sync(client, 3.0)
    assert f"{servers[1].address} answers again" in caplog.text
    assert [one.weights for one in servers] == [{"weight": 6.0}] * 3


@pytest.mark.parametrize("dead", [0, 2])
def test_a_server_that_dies_in_a_round_and_is_gone_at_the_sync(
    servers: list[EngineServer], client: EngineClients, dead: int
) -> None:
    port = servers[dead].server_port
    servers[dead].stop()
    assert client.generate(PROMPTS, n=1)["completion_ids"] == _expected(1)
    _sync(client, 2.0)
    assert client.take_lost() is None
    others = [one for number, one in enumerate(servers) if number != dead]
    assert [one.weights for one in others] == [{"weight": 4.0}] * 2
    servers[dead] = EngineServer("later", port=port)
    _sync(client, 3.0)
    assert [one.weights for one in servers] == [{"weight": 6.0}] * 3


def test_a_server_that_answers_500_is_lost(servers: list[EngineServer], client: EngineClients) -> None:
    """As one does whose engine has died, before it exits."""
    servers[1].fails = True
    assert client.generate(PROMPTS, n=1)["completion_ids"] == _expected(1)
    assert len(client.live) == 2
    client.reconnect()
    client.update_named_params([], iter([("weight", torch.ones(2))]))
    assert "did not take the weights" in str(client.take_lost())
    client.reset_prefix_cache()
    assert client.live[1].prompt_logps([[3, 4]]) is None


def test_each_server_is_probed(servers: list[EngineServer], client: EngineClients) -> None:
    servers[1].takes_weights = False
    _sync(client, 2.0)
    found = [one.prompt_logps([[3, 4, 5]]) for one in client.live]
    assert found == [[[-0.04, -0.04]], [[-0.02, -0.02]], [[-0.04, -0.04]]]


def test_adapters_go_to_all_and_anew_to_a_new_one(
    servers: list[EngineServer], client: EngineClients, tmp_path: Path
) -> None:
    client.load_adapter("one", tmp_path)
    assert [one.adapters for one in servers] == [["one"]] * 3
    assert [one.model for one in client.live] == ["one"] * 3
    servers[0].instance, servers[0].adapters = "new", []
    client.reconnect()
    assert [one.model for one in client.live] == ["m", "one", "one"]
    client.load_adapter("two", tmp_path)
    assert [one.model for one in client.live] == ["two"] * 3
    assert client.adapter_refusal(8) is None
    assert "takes ranks up to 16" in str(client.adapter_refusal(32))


def test_servers_of_different_models_are_refused(servers: list[EngineServer]) -> None:
    servers[1].model = "other"
    made = connect([one.address for one in servers])
    with pytest.raises(EngineError, match=r"differ: m in float32, and other in float32"):
        made.init_communicator("cpu")


def test_one_group_of_nccl_with_the_workers_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's own transfer, its trainer's side replaced: ranks follow each other, and every call reaches every server."""
    from trl.generation import vllm_client

    opened: list[dict[str, Any]] = []
    group = type("Group", (), {"group": type("Inner", (), {"store": 1, "socket": 1})()})
    engine = type(
        "Engine",
        (),
        {
            "trainer_init": staticmethod(lambda info: opened.append(info) or group()),
            "trainer_send_weights": staticmethod(lambda iterator, trainer_args: [*iterator]),
        },
    )
    for name, value in {
        "NCCLWeightTransferEngine": engine,
        "NCCLTrainerSendWeightsArgs": lambda **_: None,
        "_HAS_STATEFUL_TRAINER_ENGINE": False,
        "_HAS_RESET_PREFIX_CACHE_SUCCESS": True,
        "get_ip": lambda: "10.0.0.1",
    }.items():
        monkeypatch.setattr(vllm_client, name, value, raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    with engine_servers(3, workers=2) as servers:
        client = connect([one.address for one in servers])
        client.init_communicator(0)
        infos = [one.asked("/init_weight_transfer_engine")[0]["init_info"] for one in servers]
        assert [info["rank_offset"] for info in infos] == [1, 3, 5]
        assert {info["world_size"] for info in infos} == {7}
        assert (opened[0]["rank_offset"], opened[0]["world_size"]) == (1, 7)
        client.update_named_params([("weight", "float32", [2])], iter([("weight", torch.ones(2))]))
        client.reset_prefix_cache()
        for server in servers:
            paths = [path for path, _ in server.calls]
            assert paths[1:4] == ["/start_weight_update", "/update_weights", "/finish_weight_update"]
            assert paths[4:] == ["/reset_prefix_cache"]
        assert client.take_lost() is None
        servers[1].instance = "new"
        client.reconnect()
        assert [len(one.asked("/init_weight_transfer_engine")) for one in servers] == [2, 2, 2]
        servers[0].stop()
        client.reconnect()
        infos = [one.asked("/init_weight_transfer_engine")[-1]["init_info"] for one in servers[1:]]
        assert [(info["rank_offset"], info["world_size"]) for info in infos] == [(1, 5), (3, 5)]
        servers[0] = EngineServer("back", port=servers[0].server_port)


def test_rounds_ahead_over_several_servers(servers: list[EngineServer], client: EngineClients, tmp_path: Path) -> None:
    """A request per completion: the seeds of rows, not the server, decide what is written."""
    write_folder(tmp_path, [("weight", torch.ones(2))])
    sampling = SamplingSettings(8, logprobs=True)
    seeds = list(range(10))
    with engine_servers(1) as (alone,):
        one = connect(alone.address)
        one.init_communicator("cpu")
        expected = ServerEngine(one, vocab_size=50).generate(PROMPTS, sampling, seed=seeds)
    checked: list[int] = []
    engine = ServerEngine(client, vocab_size=50, synced=checked.append)
    engine.sync_folder(tmp_path, 3)
    assert checked == [3]
    for server in servers:
        server.calls.clear()
    assert engine.generate(PROMPTS, sampling, seed=seeds) == expected
    assert [sorted(one.prompts()) for one in servers] == [PROMPTS[:4], PROMPTS[4:7], PROMPTS[7:]]
    assert client.take_metrics()["rollout/server_0/tokens"] > 0

    servers[1].answers_left = 1
    reported: list[int] = []
    found = engine.generate(PROMPTS, sampling, seed=seeds, on_ended=lambda row, _: reported.append(row))
    assert found == expected
    assert sorted(reported) == list(range(10))
    assert len(client.live) == 2
    assert client.take_metrics()["rollout/server_1/lost"] == 1.0

    servers[1].answers_left = None
    engine.sync_folder(tmp_path, 4)
    assert len(client.live) == 3
    assert engine.generate(PROMPTS, sampling, seed=seeds) == expected
    engine.close()
    assert choice({"seed": 1, "max_tokens": 8, "logprobs": 0})["token_ids"]


def test_none_answers_at_a_sync(servers: list[EngineServer], client: EngineClients) -> None:
    ports = [one.server_port for one in servers]
    for server in servers:
        server.stop()
    with pytest.raises(EngineError, match=r"went away, and none answered within 0 s"):
        client.reconnect()
    servers[:] = [EngineServer("x", port=port) for port in ports]


def test_the_keys_of_all_servers(servers: list[EngineServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine_client.ENGINE_KEY, "secret")
    made = connect([one.address for one in servers])
    assert {one.session.headers["Authorization"] for one in made.live} == {"Bearer secret"}
