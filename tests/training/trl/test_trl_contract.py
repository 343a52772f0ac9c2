"""What Covey relies on in the pinned TRL and transformers.

When one of these fails, the pinned version has changed under `training/trl/trainer.py`: read the method that is named,
fix the override that replaces it, then this test.
"""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from transformers import Trainer
from trl import GRPOTrainer as TRLGRPOTrainer
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import RepeatSampler, add_fused_lm_head, shuffle_sequence_dict

from covey.training.checkpoint.write import ResumedExactly
from covey.training.trl.sampled_scoring import FORWARD_KEYS
from covey.training.trl.trainer import GRPOTrainer

REPLACED = {
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_compute_loss": ["self", "model", "inputs"],
    "_finalize_training": ["self", "trial", "num_train_samples", "start_time"],
    "_generate": ["self", "prompts"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_generate_single_turn": [
        *["self", "prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"],
    ],
    "_get_per_token_logps_and_entropies": [
        *["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"],
        *["compute_entropy", "compute_aux_loss", *FORWARD_KEYS],
    ],
    "_get_train_sampler": ["self", "dataset"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "_prepare_inputs": ["self", "generation_batch"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_tool_call_loop": [
        *["self", "prompts", "prompt_ids", "completion_ids", "completions", "logprobs", "images", "multimodal_fields"],
    ],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    "create_scheduler": ["self", "num_training_steps", "optimizer"],
}

ATTRIBUTES = {
    "_step": "__init__",
    "_buffered_inputs": "_prepare_inputs",
    "_metrics": "__init__",
    "_logs": "__init__",
    "_current_train_step_time": "training_step",
    "beta": "__init__",
}


@pytest.mark.parametrize(("method", "parameters"), REPLACED.items())
def test_replaced_methods_keep_their_signature(method: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(TRLGRPOTrainer, method)).parameters) == parameters
    ours = {*vars(GRPOTrainer), *vars(ResumedExactly)}
    assert method in ours, f"covey's GRPOTrainer no longer replaces {method}: drop it from this list"


@pytest.mark.parametrize(("attribute", "method"), ATTRIBUTES.items())
def test_attributes_that_a_checkpoint_holds_are_still_there(attribute: str, method: str) -> None:
    assert f"self.{attribute}" in inspect.getsource(getattr(TRLGRPOTrainer, method))


def test_the_constructor_is_trls() -> None:
    assert issubclass(GRPOTrainer, TRLGRPOTrainer)
    taken = inspect.signature(TRLGRPOTrainer.__init__).parameters
    assert {"model", "reward_funcs", "args", "train_dataset", "processing_class", "peft_config"} <= taken.keys()


def test_generation_batch_is_regenerated_on_the_cycle_that_progress_assumes() -> None:
    source = inspect.getsource(TRLGRPOTrainer._prepare_inputs)
    assert "generate_every = self.args.steps_per_generation * self.num_iterations" in source
    assert "self._step % generate_every == 0" in source


def test_a_pass_over_the_data_draws_one_permutation() -> None:
    sampler = RepeatSampler(range(10), mini_repeat_count=2, batch_size=5, seed=3)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        expected = torch.randperm(10, generator=generator).repeat_interleave(2).tolist()
        assert list(sampler) == expected


def test_running_totals_are_reset_before_training_begins_and_not_after() -> None:
    source = inspect.getsource(Trainer._inner_training_loop)
    begin = source.index("callback_handler.on_train_begin")
    for attribute in ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged"):
        assert f"self.{attribute} =" in source[:begin]
        assert f"self.{attribute} =" not in source[begin:]


def test_a_resume_loads_the_optimizer_before_it_reads_data() -> None:
    source = inspect.getsource(Trainer._inner_training_loop)
    assert source.index("self._prepare_for_training(") < source.index("self._run_epoch(")
    prepares = inspect.getsource(Trainer._prepare_for_training)
    created, loaded = (prepares.index(call) for call in ("self.create_scheduler(", "deepspeed_load_checkpoint("))
    assert created < loaded < prepares.index("self._load_optimizer_and_scheduler(")


def test_the_reference_is_built_scored_and_used_while_beta_is_not_zero() -> None:
    """Under an objective of its own use of the reference, β is zero within the loss only."""
    for method in ("__init__", "_generate_and_score_completions", "_compute_loss"):
        source = inspect.getsource(getattr(TRLGRPOTrainer, method))
        assert "if self.beta == 0.0" in source or "if self.beta != 0.0" in source
    loss = inspect.getsource(TRLGRPOTrainer._compute_loss)
    assert loss.count("self.beta") == 4  # the divergence, the term, its weight, and the metric


def test_the_loss_scores_the_policy_once_and_by_the_method_that_keeps_it() -> None:
    source = inspect.getsource(TRLGRPOTrainer._compute_loss)
    assert source.count("self._get_per_token_logps_and_entropies(") == 1
    assert source.count("model(") == 0


def test_rewards_are_gathered_and_then_made_advantages_of_whole_groups() -> None:
    assert "rewards_per_func = gather(rewards_per_func)" in inspect.getsource(TRLGRPOTrainer._calculate_rewards)
    source = inspect.getsource(TRLGRPOTrainer._generate_and_score_completions)
    assert source.count("self._calculate_rewards(") == 1
    for part in (
        "self.accelerator.process_index * len(prompts)",  # the slice of a process
        'self._logs["advantages"].extend(all_process_advantages.tolist())',
        'output["ref_per_token_logps"] = ref_per_token_logps',
        'output["old_per_token_logps"] = old_per_token_logps',
        "completion_mask = completion_mask * (~is_truncated)",
    ):
        assert part in source, part


def test_rewards_that_start_early_get_what_they_are_called_with_later() -> None:
    source_of_generate = "".join(inspect.getsource(TRLGRPOTrainer._generate).split())
    returned = "prompt_ids,completion_ids,tool_mask,completions,logprobs,extra_fields,images,tool_images"
    assert source_of_generate.endswith(f"return{returned}")
    source = inspect.getsource(TRLGRPOTrainer._generate_and_score_completions)
    between = source[source.index("self._generate(prompts)") : source.index("self._calculate_rewards(")]
    assert "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)" in source
    for name in ("prompts", "completions", "completion_ids_list"):  # the same lists, as they were
        assert f"{name} = " not in between.replace(f"_{name} = ", ""), name
    rewards = inspect.getsource(TRLGRPOTrainer._calculate_rewards)
    assert 'if key not in ["prompt", "completion", "completion_ids"]' in rewards
    given = [line.split('"')[1] for line in rewards.splitlines() if line.strip().startswith('reward_kwargs["')]
    assert given == ["trainer_state", "log_extra", "log_metric", "environments"]


def _compact(method: str) -> str:
    return "".join(inspect.getsource(getattr(TRLGRPOTrainer, method)).split())


def test_environments_are_handed_out_as_resets_are_started_for_them() -> None:
    source = _compact("_generate_and_score_completions")
    for part in (
        'self._batch_environments=[x.get("environment")ifself._multi_environmentelseNoneforxininputs]',
        "pool=self._environment_pool[name]",
        "ifindex==len(pool):pool.append(self.environment_factories[name]())",
        "self.environments.append(pool[index])",
        'reset_kwargs={k:vfork,vinx.items()ifk!="environment"}ifself._multi_environmentelsex',
        "observation=environment.reset(**reset_kwargs)",
    ):
        assert part in source, part
    assert source.index("environment.reset(") < source.index("self._generate(prompts)")
    assert source.count("self._generate(prompts)") == 1


def test_the_tool_loop_takes_and_returns_what_covey_does() -> None:
    source = _compact("_generate")
    assert "prompts=copy.deepcopy(prompts)" in source
    assert "ifself.tools:(tool_mask,completions,completion_ids,logprobs,tool_call_count,tool_failure_count," in source
    loop = _compact("_tool_call_loop")
    assert loop.endswith(
        "returntool_mask,completions,completion_ids,logprobs,tool_call_count,tool_failure_count,tool_images"
    )
    for part in (
        "iteration_num<self.max_tool_calling_iterations",
        "self._sync_tool_dicts[idx_with_tool]",
        "self._async_tool_dicts[idx_with_tool]",
        "max_model_len=config.max_position_embeddings",
        "len(pct)-len(prompt_ids[i])>self.max_completion_lengthorlen(pct)>=max_model_len",
    ):
        assert part in loop, part


def test_a_resampled_batch_replaces_all_that_generates_and_resets() -> None:
    """Where no environment factory is set, rows keep their prompts, and nothing of environments is used again."""
    source = _compact("_generate_and_score_completions")
    assert 'prompts=[x["prompt"]forxininputs]' in source
    assert "ifself.environments:fori,(prompt,environment,x)" in source
    after = source[source.index("self._generate(prompts)") :]
    for name in ("self.environments", "self._env_tools", "self._environment_pool"):
        where = after.replace("per_prompt_tools=[self._env_tools[name]fornameinself._batch_environments]", "")  # images
        assert name not in where, name


def test_the_divergence_is_estimated_as_covey_estimates_it() -> None:
    source = "".join(inspect.getsource(TRLGRPOTrainer._compute_loss).split())
    assert "torch.exp(ref_per_token_logps-per_token_logps)-(ref_per_token_logps-per_token_logps)-1" in source


def test_the_log_averages_lists_of_numbers_by_name() -> None:
    source = inspect.getsource(TRLGRPOTrainer.log)
    assert "for key, val in self._metrics[mode].items()" in source


def test_resampling_finds_the_steps_that_it_runs_twice() -> None:
    """Completions are generated and rewarded outside of TRL's method first, which then gets the result."""
    generate = inspect.getsource(TRLGRPOTrainer._generate)
    assert list(inspect.signature(TRLGRPOTrainer._generate).parameters) == ["self", "prompts"]
    assert generate.count("completion_ids, logprobs = self._generate_single_turn(") == 1
    for part in (
        "return prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, tool_images",
        "self.state.num_input_tokens_seen += (total_prompt_tokens",
        'self._metrics[mode]["num_tokens"] = [self.state.num_input_tokens_seen]',
    ):
        assert part in generate, part
    source = inspect.getsource(TRLGRPOTrainer._generate_and_score_completions)
    assert source.count("self._generate(prompts)") == 1
    for part in (
        "values = self._pending_extra_logs.get(column, [None] * len(prompts))",
        "values = self._pending_metrics.get(name, [])",
        'prompts = [x["prompt"] for x in inputs]',
    ):
        assert part in source, part


def test_the_sampler_has_what_the_order_of_prompts_needs() -> None:
    source = inspect.getsource(TRLGRPOTrainer._get_train_sampler)
    assert "seed=self.args.seed" in source
    sampler = RepeatSampler(range(10), mini_repeat_count=2, batch_size=5, seed=3)
    assert (sampler.data_source, sampler.shuffle, sampler.seed, sampler.batch_size) == (range(10), True, 3, 5)


def test_a_generation_batch_is_shuffled_by_one_permutation_and_split() -> None:
    source = inspect.getsource(TRLGRPOTrainer._prepare_inputs)
    steps = (
        "generation_batch = self._generate_and_score_completions(generation_batch)",
        "generation_batch = split_pixel_values_by_grid(generation_batch)",
        "generation_batch = shuffle_sequence_dict(generation_batch)",
        "generation_batches = split_tensor_dict(generation_batch, self.args.steps_per_generation)",
        "self._buffered_inputs = [unsplit_pixel_values_by_grid(batch) for batch in generation_batches]",
        "inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]",
    )
    places = [source.index(step) for step in steps]
    assert places == sorted(places)
    assert "permutation = torch.randperm(batch_size)" in inspect.getsource(shuffle_sequence_dict)


def test_chunks_of_a_micro_batch_add_up_by_the_denominators_that_covey_knows() -> None:
    source = "".join(inspect.getsource(TRLGRPOTrainer._compute_loss).split())
    for part in (
        # a mean over rows, or a sum over the generation batch's tokens
        "((per_token_loss*mask).sum(-1)/mask.sum(-1).clamp(min=1.0)).mean()",
        "(per_token_loss*mask).sum()/(per_token_loss.size(0)*self.max_completion_length)",
        'normalizer=inputs["num_items_in_batch"].clamp(min=1.0)/self.accelerator.num_processes',
        "loss=(per_token_loss*mask).sum(-1).mean()",
        "loss=(per_token_loss*mask).sum()/mask.sum().clamp(min=1.0)",
        # a dummy row's only token is masked by the tool mask
        'mask=completion_maskif"tool_mask"notininputselsecompletion_mask*inputs["tool_mask"]',
        # one number per row is gathered over processes, and NaN is none
        "self.accelerator.gather(masked_seq_mean(is_low_clipped.float()))",
        "nanmin(gathered_low_clip).item()",
    ):
        assert part in source, part
    assert source.count("self.accelerator.gather(") == 3  # with the policy loss, under an entropy bonus
    names = set(re.findall(r"_metrics\[mode\]\[\"([^\"]+)\"\]\.append", source))
    assert names == {
        *("kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"),
        *("clip_ratio/low_min", "clip_ratio/high_max", "cispo_clip_ratio", "vespo/phi_seq_mean"),
        *("policy_loss", "entropy_coef", "aux_loss"),  # these not in chunks
    }


def test_a_loss_runs_backward_as_the_chunks_do() -> None:
    assert TRLGRPOTrainer.loss_is_scaled_for_ga is True
    source = inspect.getsource(Trainer.training_step)
    assert 'kwargs["scale_wrt_gas"] = False' in source
    assert "self.accelerator.backward(loss, **kwargs)" in source
    assert "self._compute_loss(model, inputs)" in inspect.getsource(TRLGRPOTrainer.compute_loss)
    assert "_set_sync_gradients(do_sync_step)" in inspect.getsource(Trainer._run_epoch)


def test_the_head_scores_the_states_that_leave_the_backbone_against_shifted_labels() -> None:
    """Covey lets only the states that predict a completion token leave the backbone, and passes shifted labels."""
    head = "".join(inspect.getsource(add_fused_lm_head).split())
    for part in (
        'backbone_attr="base_model"',
        "backbone_outputs=getattr(self,backbone_attr)(*args,**kwargs)",
        "else:hidden_states=backbone_outputs.last_hidden_statelabels=shift_labels",
    ):
        assert part in head, part
    scoring = inspect.getsource(TRLGRPOTrainer._get_per_token_logps_and_entropies)
    assert "outputs = model(**model_inputs, labels=labels, fused_lm_head=True)" in scoring
    assert scoring.rstrip().endswith("return logps, entropies, aux_loss")


def test_the_head_computes_by_one_function_that_can_be_replaced() -> None:
    """Under a reasoning vocabulary another function replaces it within a forward, with the same arguments."""
    head = "".join(inspect.getsource(add_fused_lm_head).split())
    for part in (
        "per_token=_ChunkedLogProbFunction.apply(hidden_states[mask]ifcompactelsehidden_states.reshape(-1,",
        "weight,bias,labels[mask]ifcompactelselabels.clamp(min=0).reshape(-1),temperature,_CHUNKED_LOGPROB_CHUNK_SIZE,"
        "final_logit_softcapping,logit_scale,outputs,)",
        "log_probs,entropy,log_sum_sq_probs,mean_logits,is_top1=per_token",
        "weight,bias=lm_head.weight,lm_head.bias",
    ):
        assert part in head, part
    assert add_fused_lm_head.__module__ == "trl.trainer.utils"
    source = "".join(inspect.getsource(ChunkedLogProbFunction.forward).split())
    assert "running_max+torch.log(sum_exp)" in source  # over all rows of the weight that is passed, and no others


def test_the_correction_for_vllm_is_in_scoring_and_loss_by_one_condition() -> None:
    """Covey sets `use_vllm` around both for other samplers, and takes it back within `_generate`."""
    condition = "self.use_vllm and self.vllm_importance_sampling_correction"
    scoring = inspect.getsource(TRLGRPOTrainer._generate_and_score_completions)
    loss = inspect.getsource(TRLGRPOTrainer._compute_loss)
    assert scoring.count("use_vllm") == scoring.count(condition) == 4
    assert loss.count("use_vllm") == loss.count(condition) == 1
    assert 'output["sampling_per_token_logps"] = sampling_per_token_logps' in scoring
    assert "use_vllm" not in inspect.getsource(TRLGRPOTrainer._calculate_rewards)


def test_sampling_takes_token_ids_and_returns_token_ids_up_to_the_end() -> None:
    source = inspect.getsource(TRLGRPOTrainer._generate_single_turn)
    regular = "".join(source[source.index("# Regular generation path") :].split())
    for part in (
        "unwrap_model_for_generation(self.model_wrapped,self.accelerator,",
        "gather_deepspeed3_params=self.args.ds3_gather_for_generation",
        "gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs",
        "self._dist.summon_full_params(self.model_wrapped,recurse=False)",
        "unwrapped_model.generate(**generate_inputs,generation_config=self.generation_config)",
        "torch.isin(completion_ids,torch.tensor(self.eos_token_ids,device=device))",
        "logprobs=None#notusedinthiscase",
    ):
        assert part in regular, part
    assert regular.endswith("returncompletion_ids,logprobs")


def test_trl_times_its_stages_by_a_class_that_can_be_replaced_in_its_module() -> None:
    """`training/trl/step_timer.py` replaces `ProfilingContext` by its own class, and reads the names passed to it."""
    from trl.extras import profiling

    made = inspect.getsource(profiling.profiling_context)
    assert "return ProfilingContext(" in made  # looked up in the module when it is called
    assert 'context_name = f"{trainer.__class__.__name__}.{name}"' in made
    assert "name=context_name" in made
    assert "with profiling_context(self, func.__name__):" in inspect.getsource(profiling.profiling_decorator)
    assert list(inspect.signature(profiling.ProfilingContext.__init__).parameters)[:2] == ["self", "name"]
    assert "self.name = name" in inspect.getsource(profiling.ProfilingContext.__init__)
    for method in ("__enter__", "__exit__"):
        assert method in vars(profiling.ProfilingContext)
    assert "@profiling_decorator" in inspect.getsource(TRLGRPOTrainer._calculate_rewards)
    source = inspect.getsource(TRLGRPOTrainer._generate_single_turn)
    for name in ("transformers.generate", "transformers.generate_batch", "vLLM.generate"):
        assert f'profiling_context(self, "{name}")' in source, name
