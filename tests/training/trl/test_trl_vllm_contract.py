"""What Covey relies on in the pinned TRL where vLLM samples; see `test_trl_contract.py`."""

from __future__ import annotations

import inspect

from trl import GRPOTrainer as TRLGRPOTrainer
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

ENGINE_REPLACED = {
    "sync_weights": ["self"],
    "generate": ["self", "prompts", "images", "num_generations", "profiler"],
    "_iter_named_params": ["self"],
}
"""What `training/trl/engine.py` replaces or calls of TRL's `VLLMGeneration`."""

CLIENT_REPLACED = {
    "_post": ["self", "url", "kwargs"],
    "init_communicator": ["self", "device"],
    "update_named_params": ["self", "metadata", "named_params"],
    "reset_prefix_cache": ["self"],
}
"""What `training/trl/engine_client.py` replaces of TRL's `VLLMClient`, besides `generate`."""


def test_vllm_is_called_through_the_methods_that_covey_replaces() -> None:
    for kind, methods in ((VLLMGeneration, ENGINE_REPLACED), (VLLMClient, CLIENT_REPLACED)):
        for method, parameters in methods.items():
            assert list(inspect.signature(getattr(kind, method)).parameters) == parameters, method


def test_the_trainer_makes_its_vllm_by_a_name_that_covey_can_replace() -> None:
    source = inspect.getsource(TRLGRPOTrainer.__init__)
    assert grpo_trainer.VLLMGeneration is VLLMGeneration
    assert source.count("self.vllm_generation = VLLMGeneration(") == 1
    assert source.index("set_seed(args.seed, device_specific=True)") < source.index("VLLMGeneration(")
    made = inspect.getsource(VLLMGeneration._init_vllm)
    assert "self.llm = LLM(" in made
    for key in ("seed=", "max_model_len=", "max_num_seqs=", "gpu_memory_utilization=", "quantization="):
        assert key in made, key
    assert "dtype=" not in made, "TRL passes a dtype now: see EngineGeneration._start"
    assert "self.vllm_client = VLLMClient(" in made
    assert "connection_timeout=self.server_timeout" in made
    assert "self.vllm_client.init_communicator(device=accelerator.device)" in made


def test_weights_and_completions_go_through_the_client_alone() -> None:
    """A lost server is detected there; the answer is then empty, which all processes see."""
    sync = inspect.getsource(VLLMGeneration.sync_weights)
    assert "self.vllm_client.update_named_params(self._weight_metadata, self._iter_named_params())" in sync
    assert "self.vllm_client.reset_prefix_cache()" in sync
    source_of_generate = inspect.getsource(VLLMGeneration.generate)
    assert source_of_generate.count("self.vllm_client.generate(") == 1
    after = source_of_generate[source_of_generate.index("self.vllm_client.generate(") :]
    keys = ('output["prompt_ids"]', 'output["completion_ids"]', 'output["logprobs"]', 'output.get("logprob_token_ids")')
    for key in keys:
        assert key in after, key
    single_turn = inspect.getsource(TRLGRPOTrainer._generate_single_turn)
    assert "self.state.global_step != self._last_loaded_step" in single_turn  # when it syncs


def test_adapters_are_unmerged_once_the_last_weight_was_read() -> None:
    """Which is why weights that are kept for a while are copied."""
    source = inspect.getsource(VLLMGeneration._iter_named_params)
    assert source.index("model.merge_adapter()") < source.index("yield name, param.data")
    assert source.index("model.unmerge_adapter()") > source.index("yield name, param.data")
