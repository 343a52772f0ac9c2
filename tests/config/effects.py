"""How a change of each key shows that has an effect in every run; all other keys say when they have one."""

from __future__ import annotations

EFFECTS = {
    "where a run is written, and how it starts and ends": """
        run_name output_dir resume stop_after_steps overwrite ignore_checks callbacks training.ignore_data_skip
        training.restore_callback_states_from_checkpoint training.enable_jit_checkpoint training.save_strategy""",
    "the model that is loaded or trained": """
        model.name model.dtype model.attn_implementation model.trust_remote_code model.load_in_8bit model.load_in_4bit
        model.reasoning_vocab_size model.reasoning_lr_multiplier model.lora.enabled model.lora.path
        training.model_init_kwargs training.use_cache""",
    "prompts, rows and rewards": """
        seed dataset.task dataset.library dataset.settings dataset.path dataset.test_path dataset.system_prompt
        dataset.user_prompt_template dataset.max_train_samples dataset.max_prompt_length dataset.train_fraction
        dataset.validation_fraction dataset.test_size dataset.single_size dataset.mixture.datasets
        environment.factory environment.settings environment.tools environment.rollout_func model.chat_template
        training.chat_template_kwargs training.shuffle_dataset training.data_seed training.remove_unused_columns
        rewards.funcs rewards.on_error rewards.workers rewards.think_tag rewards.answer_tag training.reward_weights""",
    "what an engine is asked for": """
        training.num_generations training.max_completion_length training.temperature training.top_p training.top_k
        training.min_p training.generation_kwargs training.repetition_penalty model.use_generation_config
        training.use_vllm rollout.engine training.use_transformers_continuous_batching training.use_transformers_paged
        training.staleness training.schedule objective.resample_groups""",
    "logged numbers of a step": """
        training.per_device_train_batch_size training.gradient_accumulation_steps training.generation_batch_size
        training.steps_per_generation training.max_steps training.learning_rate training.lr_scheduler_type
        training.optim training.weight_decay training.max_grad_norm training.bf16 training.fp16 training.tf32
        training.disable_dropout training.cast_lm_head_to_fp32 training.router_aux_loss_coef training.beta
        training.num_iterations training.multi_objective_aggregation training.loss_type
        training.mask_truncated_completions training.sync_ref_model training.top_entropy_quantile training.entropy_coef
        training.use_adaptive_entropy training.off_policy_mask_threshold training.full_determinism training.use_cpu
        objective.name objective.settings objective.kl.controller objective.kl.stop_above speed.skip_zero""",
    "evaluations": """
        evaluation.every_steps evaluation.benchmarks evaluation.grader evaluation.num_samples evaluation.k
        evaluation.max_problems evaluation.temperature evaluation.max_completion_length evaluation.batch_size
        evaluation.engine profile.group profile.samples profile.split profile.problems profile.minutes""",
    "what is logged, where and how often": """
        logging.completions_every_steps logging.sample_completions logging.mode training.report_to
        training.logging_strategy training.logging_first_step training.logging_nan_inf_filter
        training.include_num_input_tokens_seen training.log_level training.log_level_replica training.log_on_each_node
        training.log_completions training.skip_memory_metrics training.debug training.push_to_hub training.hub_token""",
    "time and memory": """
        speed.shared_scoring speed.trim speed.max_tokens training.activation_checkpointing
        training.gradient_checkpointing training.torch_compile training.torch_compile_backend
        training.torch_compile_mode training.use_liger_kernel training.torch_empty_cache_steps
        training.pad_to_multiple_of training.dataloader_num_workers training.dataloader_pin_memory
        training.dataloader_persistent_workers training.dataloader_prefetch_factor
        training.dataloader_multiprocessing_context""",
    "processes, and the plan or job of a launch": """
        model.mesh_shape training.fsdp training.deepspeed training.accelerator_config training.parallelism_config
        training.ddp_backend training.ddp_timeout launch.gpus launch.nodes launch.num_processes launch.accelerate
        launch.main_process_port launch.step_timeout launch.stop_timeout launch.log_dir launch.backend
        launch.image launch.volume launch.slurm.account launch.slurm.partition launch.slurm.qos
        launch.slurm.constraint launch.slurm.gres launch.slurm.cpus
        launch.slurm.mem launch.slurm.time launch.slurm.exclusive launch.slurm.signal_seconds launch.slurm.requeue
        launch.slurm.options launch.slurm.setup""",
    "nothing but a refusal": """
        training.label_smoothing_factor training.neftune_noise_alpha training.train_sampling_strategy""",
}
"""Keys by what shows."""
