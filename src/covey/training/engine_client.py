"""TRL's client of a vLLM server, which besides notices a server that went away or was replaced, and serves CPUs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import requests
import torch
from safetensors.torch import save_file
from trl.generation.vllm_client import VLLMClient

from covey.errors import EngineError
from covey.rollout.vllm_serve import INSTANCE_HEADER, WORKER

logger = logging.getLogger(__name__)

_FILE_BYTES = 1 << 30
"""Weights are written in files of about so many bytes: no more of them is held twice."""

Named = Iterator[tuple[str, torch.Tensor]]


class EngineClient(VLLMClient):
    """Keeps what it needs to say whether completions came from the server that holds the right weights."""

    lost: str | None = None
    """What went wrong with the server since `forget`, if something did."""
    instance: str | None = None
    """The start of a server that the newest answer came from; None from servers that do not say."""

    def __init__(self, *args: Any, connection_timeout: float = 0.0, **kwargs: Any) -> None:
        """As TRL's.

        Raises:
            EngineError: no server answers within the time.
        """
        self._timeout = connection_timeout
        self._other_connection: str | None = None
        self._synced: str | None = None
        try:
            super().__init__(*args, connection_timeout=connection_timeout, **kwargs)
        except requests.ConnectionError as error:  # which TRL raises by its plain name
            raise EngineError(
                f"No vLLM server answers at {self.base_url} after {connection_timeout:g} s "
                "(training.vllm_server_timeout). Start one with `python -m covey.rollout.vllm_serve --model MODEL`, or "
                "have `covey launch` do it; training.vllm_server_host, vllm_server_port or vllm_server_base_url say "
                "where it is."
            ) from error
        self.session.hooks["response"].append(self._note)

    def _post(self, url: str, **kwargs: Any) -> dict[str, Any]:
        response = self.session.post(url, **kwargs)
        if response.status_code != 200:
            raise EngineError(f"The vLLM server refused {url} ({response.status_code}): {response.text[:500]}")
        answer: dict[str, Any] = response.json()
        return answer

    def _note(self, response: requests.Response, *_: Any, **__: Any) -> None:
        self.instance = response.headers.get(INSTANCE_HEADER)

    def init_communicator(self, device: Any = 0) -> None:
        """Open the way for weights: NCCL for a trainer on a GPU, which TRL does; a folder for one on a CPU."""
        self._device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        config = self.get_server_info()
        self.dtype = str(config["model_config"]["dtype"]).removeprefix("torch.")
        self.max_model_len = int(config["model_config"]["max_model_len"])
        if self._device.type == "cpu":
            if config["parallel_config"].get("worker_extension_cls") != WORKER:
                raise EngineError(
                    f"The vLLM server at {self.base_url} cannot take weights from a trainer on a CPU: start it with "
                    "`python -m covey.rollout.vllm_serve --model MODEL`, on this machine."
                )
        else:
            super().init_communicator(self._device)
        self._connected = self.instance
        if self.instance is None:
            logger.warning(
                "The vLLM server at %s does not say which start of a server it is, so a restart within a step goes "
                "unnoticed. Servers started with `python -m covey.rollout.vllm_serve` or `covey launch` do.",
                self.base_url,
            )

    def reconnect(self) -> None:
        """Wait for a server, and open the way for weights again if it is not the one it was opened to.

        Raises:
            EngineError: none answers within `training.vllm_server_timeout`.
        """
        try:
            self.check_server(self._timeout)
            self._get(f"{self.base_url}/v1/models")
        except requests.RequestException as error:
            raise EngineError(
                f"The vLLM server at {self.base_url} went away, and none answered within {self._timeout:g} s "
                "(training.vllm_server_timeout). The run can go on from its newest checkpoint once a server is up; "
                "`covey launch` starts a server that dies again by itself."
            ) from error
        if self.instance != self._connected:
            logger.warning("Another vLLM server answers at %s: it gets the weights anew.", self.base_url)
            self.close_communicator()
            self.init_communicator(self._device)

    def forget(self) -> str | None:
        """What went wrong since the last time this was asked."""
        lost, self.lost = self.lost, None
        return lost

    def update_named_params(self, metadata: Any, named_params: Named) -> None:
        """Send weights. What fails becomes `lost`, once all weights were taken: they may be gathered from processes
        that wait for one another."""
        try:
            if self._device.type == "cpu":
                self._send_folder(named_params)
            else:
                super().update_named_params(metadata, named_params)
        except requests.RequestException as error:
            self.lost = f"it did not take the weights ({type(error).__name__})"
        for _ in named_params:
            pass
        self._synced = self.instance

    def _send_folder(self, named_params: Named) -> None:
        with tempfile.TemporaryDirectory(prefix="covey-weights-") as folder:
            part: dict[str, torch.Tensor] = {}
            held = files = tensors = 0
            for name, weights in named_params:
                # A copy: merged adapters are taken out of the very same memory again before the file is written.
                part[name] = weights.detach().to("cpu", copy=True).contiguous()
                held += part[name].nbytes
                tensors += 1
                if held >= _FILE_BYTES:
                    save_file(part, Path(folder) / f"{files:05d}.safetensors")
                    part, held, files = {}, 0, files + 1
            if part:
                save_file(part, Path(folder) / f"{files:05d}.safetensors")
            answer = self._post(f"{self.base_url}/collective_rpc", json={"method": "load_folder", "args": [folder]})
        if any(result != {"tensors": tensors} for result in answer["results"]):
            raise EngineError(
                f"The vLLM server at {self.base_url} did not find the {tensors} tensors that were written for it: "
                "a server on a CPU must run on the trainer's machine and see its temporary folder."
            )

    def reset_prefix_cache(self) -> None:
        """Drop what the server computed with the old weights; a server that went away has nothing to drop."""
        if self.lost is None:
            try:
                super().reset_prefix_cache()
            except requests.RequestException as error:
                self.lost = f"it could not drop its cache ({type(error).__name__})"
        if self.lost is None and self.instance != self._synced:
            self.lost = "another server answered in the middle of a sync"

    def generate(self, prompts: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As TRL's; empty, and `lost` set, if the server went away or another one answered than that synced last."""
        try:
            output: dict[str, Any] = super().generate(prompts, *args, **kwargs)
        except requests.RequestException as error:
            self.lost = f"it did not answer ({type(error).__name__})"
        else:
            if self.instance == self._synced:
                return output
            self.lost = "the completions came from another server, which has not got the weights"
        return {"prompt_ids": [], "completion_ids": [], "logprobs": None, "logprob_token_ids": None}

    def prompt_logps(self, rows: Sequence[Sequence[int]]) -> list[list[float]] | None:
        """Log-probabilities of each row's tokens after its first one, as the server's model gives them.

        None, and `lost` set, if the server went away or another one answered than that synced last.
        """
        payload = {
            "model": self.model,
            "prompt": [list(row) for row in rows],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        try:
            choices = self._post(f"{self.base_url}/v1/completions", json=payload)["choices"]
        except requests.RequestException as error:
            self.lost = f"it did not answer the probe ({type(error).__name__})"
            return None
        if self.instance != self._synced:
            self.lost = "the probe was answered by another server, which has not got the weights"
            return None
        return [
            [float(at[str(token)]["logprob"]) for token, at in zip(row[1:], choice["prompt_logprobs"][1:], strict=True)]
            for row, choice in zip(rows, choices, strict=True)
        ]
