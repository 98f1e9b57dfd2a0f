"""Lists the keys of verl that carry a key of the spec unchanged, to make overrides and to check raw ones."""

from __future__ import annotations

from opd.config.algorithm import Opd
from opd.config.sections import Split
from opd.config.tree import leaf_paths

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"

# (verl's key, the spec's path); the first row of a path is the one the overrides are written with.
VERL_KEYS: tuple[tuple[str, str], ...] = (
    ("data.train_files", "data.train"),
    ("data.val_files", "data.val"),
    ("data.train_batch_size", "data.train_batch_size"),
    ("data.max_prompt_length", "data.max_prompt_length"),
    ("data.max_response_length", "data.max_response_length"),
    ("data.filter_overlong_prompts", "data.filter_overlong"),
    ("data.truncation", "data.truncation"),
    ("data.shuffle", "data.shuffle"),
    ("data.dataloader_num_workers", "data.num_workers"),
    ("data.train_max_samples", "data.max_train_samples"),
    ("data.val_max_samples", "data.max_val_samples"),
    (f"{_MODEL}.path", "model.path"),
    (f"{_MODEL}.trust_remote_code", "model.trust_remote_code"),
    (f"{_MODEL}.use_remove_padding", "actor.use_remove_padding"),
    (f"{_MODEL}.enable_gradient_checkpointing", "actor.gradient_checkpointing"),
    (f"{_ACTOR}.optim.lr", "actor.learning_rate"),
    (f"{_ACTOR}.optim.lr_scheduler_type", "actor.lr_schedule"),
    (f"{_ACTOR}.optim.min_lr_ratio", "actor.min_lr_ratio"),
    (f"{_ACTOR}.optim.lr_warmup_steps", "actor.num_warmup_steps"),
    (f"{_ACTOR}.optim.weight_decay", "actor.weight_decay"),
    (f"{_ACTOR}.optim.betas", "actor.betas"),
    (f"{_ACTOR}.optim.clip_grad", "actor.grad_clip"),
    (f"{_ACTOR}.grad_clip", "actor.grad_clip"),
    (f"{_ACTOR}.ppo_epochs", "actor.ppo_epochs"),
    (f"{_ACTOR}.ppo_mini_batch_size", "actor.ppo_mini_batch_size"),
    (f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "actor.ppo_micro_batch_size_per_gpu"),
    (f"{_ACTOR}.use_dynamic_bsz", "actor.use_dynamic_bsz"),
    (f"{_ACTOR}.ppo_max_token_len_per_gpu", "actor.ppo_max_token_len_per_gpu"),
    (f"{_ACTOR}.ulysses_sequence_parallel_size", "actor.ulysses_sequence_parallel_size"),
    (f"{_ACTOR}.use_torch_compile", "actor.torch_compile"),
    (f"{_ACTOR}.fsdp_config.use_torch_compile", "actor.torch_compile"),
    (f"{_ACTOR}.fsdp_config.param_offload", "actor.param_offload"),
    (f"{_ACTOR}.fsdp_config.optimizer_offload", "actor.optimizer_offload"),
    (f"{_ACTOR}.clip_ratio_low", "grpo.clip_ratio_low"),
    (f"{_ACTOR}.clip_ratio_high", "grpo.clip_ratio_high"),
    (f"{_ACTOR}.clip_ratio_c", "grpo.clip_ratio_c"),
    (f"{_ACTOR}.kl_loss_coef", "grpo.kl_loss_coef"),
    (f"{_ACTOR}.kl_loss_type", "grpo.kl_loss_type"),
    (f"{_ACTOR}.entropy_coeff", "grpo.entropy_coeff"),
    (f"{_ACTOR}.loss_agg_mode", "grpo.loss_agg_mode"),
    ("algorithm.norm_adv_by_std_in_grpo", "grpo.norm_adv_by_std"),
    (f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", "actor.log_prob_micro_batch_size_per_gpu"),
    ("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", "actor.log_prob_micro_batch_size_per_gpu"),
    (f"{_ROLLOUT}.log_prob_max_token_len_per_gpu", "actor.log_prob_max_token_len_per_gpu"),
    ("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", "actor.log_prob_max_token_len_per_gpu"),
    (f"{_ROLLOUT}.n", "rollout.num_samples"),
    (f"{_ROLLOUT}.temperature", "rollout.temperature"),
    (f"{_ROLLOUT}.top_p", "rollout.top_p"),
    (f"{_ROLLOUT}.top_k", "rollout.top_k"),
    (f"{_ROLLOUT}.val_kwargs.n", "rollout.val.num_samples"),
    (f"{_ROLLOUT}.val_kwargs.temperature", "rollout.val.temperature"),
    (f"{_ROLLOUT}.val_kwargs.top_p", "rollout.val.top_p"),
    (f"{_ROLLOUT}.val_kwargs.top_k", "rollout.val.top_k"),
    (f"{_ROLLOUT}.tensor_model_parallel_size", "rollout.tensor_parallel_size"),
    (f"{_ROLLOUT}.gpu_memory_utilization", "rollout.gpu_memory_utilization"),
    (f"{_ROLLOUT}.free_cache_engine", "rollout.free_cache_engine"),
    (f"{_ROLLOUT}.enforce_eager", "rollout.enforce_eager"),
    (f"{_ROLLOUT}.max_num_seqs", "rollout.max_num_seqs"),
    (f"{_ROLLOUT}.max_num_batched_tokens", "rollout.max_num_batched_tokens"),
    (f"{_ROLLOUT}.agent.num_workers", "rollout.num_agent_workers"),
    (f"{_ROLLOUT}.multi_turn.max_assistant_turns", "agent.max_assistant_turns"),
    (f"{_ROLLOUT}.multi_turn.max_tool_response_length", "agent.max_tool_response_length"),
    (f"{_ROLLOUT}.multi_turn.max_parallel_calls", "agent.max_parallel_calls"),
    (f"{_ROLLOUT}.multi_turn.format", "agent.tool_format"),
    ("reward.num_workers", "reward.num_workers"),
    ("trainer.nnodes", "trainer.nnodes"),
    ("trainer.n_gpus_per_node", "trainer.gpus_per_node"),
    ("trainer.device", "device"),
    ("trainer.logger", "trainer.loggers"),
    ("trainer.project_name", "trainer.project"),
    ("trainer.total_epochs", "trainer.total_epochs"),
    ("trainer.total_training_steps", "trainer.total_steps"),
    ("trainer.save_freq", "trainer.save_freq"),
    ("trainer.test_freq", "trainer.test_freq"),
    ("trainer.val_before_train", "trainer.val_before_train"),
)

# Keys that are understood but never written: ours as people type them among verl's, the original's name for the teacher.
ALSO_READ: dict[str, str] = {
    **{f"opd.{path}": f"opd.{path}" for path, _ in leaf_paths(Opd)},
    **{f"opd.teacher.{name}": f"teacher.{name}" for name in ("path", "trust_remote_code", "dtype", "offload")},
    "actor_rollout_ref.ref.model.path": "teacher.path",
    "data.seed": "seed",
    **{f"data.split.{path}": f"data.split.{path}" for path, _ in leaf_paths(Split)},
}

SPEC_PATH_OF: dict[str, str] = {**dict(VERL_KEYS), **ALSO_READ}
