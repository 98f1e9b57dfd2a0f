{{- /* Generated from opd.config and uv.lock by `make schema`: do not edit. */ -}}
{{- define "opd.constants" -}}
{
 "namePattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$",
 "maxNameChars": 47,
 "rayVersion": "2.60.0",
 "secretName": "^[A-Z][A-Z0-9_]*_(TOKEN|KEY|PASSWORD|SECRET)$|^(TOKEN|PASSWORD|SECRET)$",
 "allAddresses": "0.0.0.0/0",
 "ownLinks": {"0.0.0.0/0": "169.254.0.0/16", "::/0": "fd00:ec2::/32"},
 "identities": {
  "gke": {
   "annotation": "iam.gke.io/gcp-service-account",
   "podLabels": {},
   "egress": [{"cidr": "169.254.169.254/32", "ports": [80, 8080]}, {"cidr": "169.254.169.252/32", "ports": [987, 988]}]
  },
  "eks-pod-identity": {
   "annotation": "",
   "podLabels": {},
   "egress": [{"cidr": "169.254.170.23/32", "ports": [80]}, {"cidr": "fd00:ec2::23/128", "ports": [80]}]
  },
  "azure": {
   "annotation": "azure.workload.identity/client-id",
   "podLabels": {"azure.workload.identity/use": "true"},
   "egress": []
  }
 },
 "podSpec": {
  "guarded": ["automountServiceAccountToken", "hostIPC", "hostNetwork", "hostPID", "hostPath", "hostPort", "privileged", "securityContext", "serviceAccount", "serviceAccountName", "serviceAccountToken"],
  "freeToUnset": ["securityContext.runAsUser", "securityContext.runAsGroup", "securityContext.fsGroup"],
  "rule": "Pod Security `restricted` or the pods' identity rests on it, so podSpec leaves it alone",
  "fix": "remove it (user and groups: cluster.podSecurity; account: cluster.serviceAccount.name), or set cluster.podSecurity.acceptUnrestricted: true",
  "unsetRule": "it is a list of fields to drop, as dotted paths",
  "unsetFix": "write it like unset: [securityContext.runAsUser]"
 },
 "storeVariables": {"endpoint": "AWS_ENDPOINT_URL_S3", "region": "AWS_DEFAULT_REGION", "addressing": "OPD_S3_ADDRESSING"},
 "urlCredentials": "[A-Za-z][A-Za-z0-9+.-]*://[^/@\\s]*:[^/@\\s]*@",
 "secretInText": "[A-Z][A-Z0-9_]*_(TOKEN|KEY|PASSWORD|SECRET)['\\\"]?\\s*[:=]",
 "refused": [
  {
   "pattern": "(^|\\.)(lora_rank|lora\\.rank)$",
   "harmless": ["0"],
   "rule": "LoRA students are asked for by model.lora, with rank, alpha and target_modules: by verl's own keys checkpoints could not be merged, nor weights be served"
  },
  {
   "pattern": "(^|\\.)(lora|lora_\\w+)(\\.|$)",
   "harmless": ["null"],
   "rule": "LoRA students are asked for by model.lora, with rank, alpha and target_modules: by verl's own keys checkpoints could not be merged, nor weights be served"
  },
  {
   "pattern": "(^|\\.)(target_parameters|save_lora_only)$",
   "harmless": ["false", "null"],
   "rule": "LoRA students are asked for by model.lora, with rank, alpha and target_modules: by verl's own keys checkpoints could not be merged, nor weights be served"
  },
  {
   "pattern": "(^|\\.)trainer_mode$|^trainer\\.mode$|^mode$",
   "harmless": ["sync"],
   "rule": "only verl's sync trainer is supported: other modes reuse stale rollouts, which on-policy distillation excludes"
  },
  {"pattern": "^trainer\\.use_v1$", "harmless": ["true"], "rule": "only verl's V1 trainer is supported"},
  {
   "pattern": "(^|\\.)hybrid_engine$",
   "harmless": ["true"],
   "rule": "trainer and rollout share their devices here: a separate rollout pool needs verl's async trainer"
  },
  {
   "pattern": "(^|\\.)(strategy|model_engine)$|^engine$",
   "harmless": ["dp", "fsdp2"],
   "rule": "only the fsdp2 engine is supported: Megatron shards heads and checkpoints in a way the teacher cannot follow"
  },
  {
   "pattern": "(^|\\.)megatron(\\.|$)",
   "harmless": [],
   "rule": "only the fsdp2 engine is supported: Megatron shards heads and checkpoints in a way the teacher cannot follow"
  },
  {
   "pattern": "^distillation\\.enabled$",
   "harmless": ["false"],
   "rule": "verl's own distillation uses top-k or sampled tokens only; kind opd distils the full distributions"
  }
 ],
 "storageUnits": {"aNode": 2, "cpu": 1, "override": "^[+]*transfer_queue\\.backend\\.SimpleStorage\\.num_data_storage_units=([0-9]+)$"},
 "needs": {
  "worker": [
   {"name": "ranks", "per": "rank", "cpus": 3, "leastGib": 1.0, "roomGib": 1.0},
   {"name": "queue storage units", "per": "storage unit", "cpus": 1, "leastGib": 0.5, "roomGib": 0.5},
   {"name": "queue controllers", "per": "node", "cpus": 1, "leastGib": 0.5, "roomGib": 0.0},
   {"name": "rollout workers", "per": "rollout worker", "cpus": 0, "leastGib": 0.5, "roomGib": 0.5},
   {"name": "reward workers", "per": "reward worker", "cpus": 0, "leastGib": 0.5, "roomGib": 0.5},
   {"name": "GPUs", "per": "gpu", "cpus": 0, "leastGib": 4.0, "roomGib": 16.0},
   {"name": "copies of checkpoints", "per": "copy", "cpus": 0, "leastGib": 0.0, "roomGib": 12.0},
   {"name": "Ray nodes", "per": "node", "cpus": 0, "leastGib": 0.5, "roomGib": 1.5}
  ],
  "head": [
   {"name": "drivers", "per": "node", "cpus": 1, "leastGib": 1.5, "roomGib": 8.5},
   {"name": "Ray heads", "per": "node", "cpus": 1, "leastGib": 1.0, "roomGib": 3.0}
  ],
  "convert": [
   {"name": "conversions", "per": "node", "cpus": 3, "leastGib": 1.5, "roomGib": 56.5},
   {"name": "Ray heads", "per": "node", "cpus": 1, "leastGib": 1.0, "roomGib": 3.0}
  ]
 },
 "stageDefaults": {
  "grpo": {
   "kind": "grpo",
   "device": "cuda",
   "model": {"trust_remote_code": false},
   "data": {
    "dir": "data",
    "train_batch_size": 512,
    "max_prompt_length": 2048,
    "max_response_length": 8192,
    "enable_thinking": true,
    "filter_overlong": true,
    "truncation": "left",
    "shuffle": true,
    "train_ratio": 0.8
   },
   "actor": {
    "learning_rate": 1e-06,
    "lr_schedule": "constant",
    "min_lr_ratio": 0.0,
    "num_warmup_steps": 0,
    "weight_decay": 0.1,
    "betas": [0.9, 0.999],
    "grad_clip": 1.0,
    "ppo_epochs": 1,
    "ppo_mini_batch_size": 128,
    "ppo_micro_batch_size_per_gpu": 4,
    "ulysses_sequence_parallel_size": 1
   },
   "trainer": {
    "nnodes": 1,
    "loggers": ["console"],
    "project": "opd",
    "stall_floor_s": 900.0,
    "stall_factor": 10.0,
    "total_epochs": 15,
    "save_freq": 20,
    "test_freq": 5,
    "val_before_train": true,
    "max_skipped_updates": 20,
    "monitor": true,
    "resume": "auto"
   },
   "rollout": {
    "num_samples": 8,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "val": {"num_samples": 16, "top_p": 0.8, "top_k": 20},
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.7,
    "free_cache_engine": true,
    "enforce_eager": false,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "schedule": "strict",
    "keep_prefixes": false,
    "engine_kwargs": {}
   },
   "reward": {"entry": "compute_score", "timeout_s": 10.0},
   "overrides": [],
   "recipe": "grpo",
   "grpo": {"kl_loss_type": "low_var_kl", "entropy_coeff": 0.0, "loss_agg_mode": "token-mean", "norm_adv_by_std": true},
   "checkpoint": {"overlap": true}
  },
  "opd": {
   "kind": "opd",
   "device": "cuda",
   "model": {"trust_remote_code": false},
   "data": {
    "dir": "data",
    "train_batch_size": 256,
    "max_prompt_length": 2048,
    "max_response_length": 8192,
    "enable_thinking": true,
    "filter_overlong": true,
    "truncation": "left",
    "shuffle": true,
    "train_ratio": 0.8
   },
   "actor": {
    "learning_rate": 1e-06,
    "lr_schedule": "constant",
    "min_lr_ratio": 0.0,
    "num_warmup_steps": 0,
    "weight_decay": 0.1,
    "betas": [0.9, 0.999],
    "grad_clip": 1.0,
    "ppo_epochs": 1,
    "ppo_mini_batch_size": 64,
    "ppo_micro_batch_size_per_gpu": 4,
    "ulysses_sequence_parallel_size": 1
   },
   "trainer": {
    "nnodes": 1,
    "loggers": ["console"],
    "project": "opd",
    "stall_floor_s": 900.0,
    "stall_factor": 10.0,
    "total_epochs": 15,
    "save_freq": 20,
    "test_freq": 5,
    "val_before_train": false,
    "max_skipped_updates": 20,
    "monitor": true,
    "resume": "auto"
   },
   "rollout": {
    "num_samples": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "val": {"num_samples": 16, "top_p": 0.8, "top_k": 20},
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.7,
    "free_cache_engine": true,
    "enforce_eager": false,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "schedule": "strict",
    "keep_prefixes": false,
    "engine_kwargs": {}
   },
   "reward": {"entry": "compute_score", "timeout_s": 10.0},
   "overrides": [],
   "teachers": {},
   "route": {"by": "data_source", "to": {}},
   "opd": {
    "loss_type": "reverse_kl",
    "divergence_weight": 1.0,
    "policy": {"weight": 0.0, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, "norm_adv_by_std": true},
    "chunk_size": 256,
    "workspace_gib": 1.1,
    "max_unshared_mass": 0.05,
    "loss_agg_mode": "token-mean",
    "importance": {
     "tokens": {"score": "none", "ratio": 0.5, "mode": "topk", "scope": "rollout", "position": "first", "entropy_clip_q": 0.98},
     "problems": {"weights": "none", "alpha": 1.0, "beta": 1.0, "drop": true, "recompute": {"at_stages": false, "num_samples": 8}}
    },
    "stages": [],
    "horizon": {"applies": "train"},
    "num_kept_rollouts": 4
   },
   "checkpoint": {"overlap": true}
  },
  "opd-agent": {
   "kind": "opd-agent",
   "device": "cuda",
   "model": {"trust_remote_code": false},
   "data": {
    "dir": "data",
    "train_batch_size": 256,
    "max_prompt_length": 4096,
    "max_response_length": 24576,
    "enable_thinking": true,
    "filter_overlong": true,
    "truncation": "left",
    "shuffle": true,
    "train_ratio": 0.8
   },
   "actor": {
    "learning_rate": 1e-06,
    "lr_schedule": "constant",
    "min_lr_ratio": 0.0,
    "num_warmup_steps": 0,
    "weight_decay": 0.1,
    "betas": [0.9, 0.999],
    "grad_clip": 1.0,
    "ppo_epochs": 1,
    "ppo_mini_batch_size": 64,
    "ppo_micro_batch_size_per_gpu": 4,
    "ulysses_sequence_parallel_size": 1
   },
   "trainer": {
    "nnodes": 1,
    "loggers": ["console"],
    "project": "opd",
    "stall_floor_s": 900.0,
    "stall_factor": 10.0,
    "total_epochs": 15,
    "save_freq": 20,
    "test_freq": 5,
    "val_before_train": false,
    "max_skipped_updates": 20,
    "monitor": true,
    "resume": "auto"
   },
   "rollout": {
    "num_samples": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "val": {"num_samples": 16, "top_p": 0.8, "top_k": 20},
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.7,
    "free_cache_engine": true,
    "enforce_eager": false,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "schedule": "strict",
    "keep_prefixes": false,
    "engine_kwargs": {}
   },
   "reward": {"entry": "compute_score", "timeout_s": 10.0},
   "overrides": [],
   "teachers": {},
   "route": {"by": "data_source", "to": {}},
   "opd": {
    "loss_type": "reverse_kl",
    "divergence_weight": 1.0,
    "policy": {"weight": 0.0, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, "norm_adv_by_std": true},
    "chunk_size": 256,
    "workspace_gib": 1.1,
    "max_unshared_mass": 0.05,
    "loss_agg_mode": "token-mean",
    "importance": {
     "tokens": {"score": "none", "ratio": 0.5, "mode": "topk", "scope": "rollout", "position": "first", "entropy_clip_q": 0.98},
     "problems": {"weights": "none", "alpha": 1.0, "beta": 1.0, "drop": true, "recompute": {"at_stages": false, "num_samples": 8}}
    },
    "stages": [],
    "horizon": {"applies": "train"},
    "num_kept_rollouts": 4
   },
   "checkpoint": {"overlap": true},
   "agent": {
    "enable_tools": true,
    "max_assistant_turns": 50,
    "max_tool_response_length": 1024,
    "max_parallel_calls": 1,
    "tool_format": "hermes",
    "call_timeout_s": 10.0,
    "num_tool_processes": 4,
    "num_kept_trajectories": 8
   }
  },
  "sft": {
   "kind": "sft",
   "device": "cuda",
   "model": {"trust_remote_code": false},
   "data": {
    "dir": "data",
    "train_batch_size": 256,
    "max_prompt_length": 2048,
    "max_response_length": 8192,
    "enable_thinking": true,
    "filter_overlong": true,
    "truncation": "left",
    "shuffle": true,
    "train_ratio": 0.8
   },
   "actor": {
    "learning_rate": 1e-06,
    "lr_schedule": "constant",
    "min_lr_ratio": 0.0,
    "num_warmup_steps": 0,
    "weight_decay": 0.1,
    "betas": [0.9, 0.999],
    "grad_clip": 1.0,
    "ppo_epochs": 1,
    "ppo_mini_batch_size": 64,
    "ppo_micro_batch_size_per_gpu": 4,
    "ulysses_sequence_parallel_size": 1
   },
   "trainer": {
    "nnodes": 1,
    "loggers": ["console"],
    "project": "opd",
    "stall_floor_s": 900.0,
    "stall_factor": 10.0,
    "total_epochs": 15,
    "save_freq": 20,
    "test_freq": 5,
    "val_before_train": true,
    "max_skipped_updates": 20,
    "monitor": true,
    "resume": "auto"
   },
   "overrides": [],
   "checkpoint": {"overlap": true}
  },
  "eval": {
   "kind": "eval",
   "device": "cuda",
   "model": {"trust_remote_code": false},
   "data": {
    "dir": "data",
    "train_batch_size": 64,
    "max_prompt_length": 2048,
    "max_response_length": 16384,
    "enable_thinking": true,
    "filter_overlong": true,
    "truncation": "left",
    "shuffle": true,
    "train_ratio": 0.8
   },
   "actor": {
    "learning_rate": 1e-06,
    "lr_schedule": "constant",
    "min_lr_ratio": 0.0,
    "num_warmup_steps": 0,
    "weight_decay": 0.1,
    "betas": [0.9, 0.999],
    "grad_clip": 1.0,
    "ppo_epochs": 1,
    "ppo_mini_batch_size": 16,
    "ppo_micro_batch_size_per_gpu": 2,
    "ulysses_sequence_parallel_size": 1
   },
   "trainer": {"nnodes": 1, "loggers": ["console"], "project": "opd", "stall_floor_s": 900.0, "stall_factor": 10.0},
   "rollout": {
    "num_samples": 8,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "val": {"num_samples": 16, "top_p": 0.8, "top_k": 20},
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.7,
    "free_cache_engine": true,
    "enforce_eager": false,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "schedule": "strict",
    "keep_prefixes": false,
    "engine_kwargs": {}
   },
   "reward": {"entry": "compute_score", "timeout_s": 10.0},
   "overrides": [],
   "eval": {"instruction_variant": "boxed", "save_generations": true}
  },
  "passrate": {
   "kind": "passrate",
   "device": "cuda",
   "model": {"trust_remote_code": false},
   "data": {
    "dir": "data",
    "train_batch_size": 512,
    "max_prompt_length": 2048,
    "max_response_length": 8192,
    "enable_thinking": true,
    "filter_overlong": true,
    "truncation": "left",
    "shuffle": true,
    "train_ratio": 0.8
   },
   "actor": {
    "learning_rate": 1e-06,
    "lr_schedule": "constant",
    "min_lr_ratio": 0.0,
    "num_warmup_steps": 0,
    "weight_decay": 0.1,
    "betas": [0.9, 0.999],
    "grad_clip": 1.0,
    "ppo_epochs": 1,
    "ppo_mini_batch_size": 16,
    "ppo_micro_batch_size_per_gpu": 2,
    "ulysses_sequence_parallel_size": 1
   },
   "trainer": {"nnodes": 1, "loggers": ["console"], "project": "opd", "stall_floor_s": 900.0, "stall_factor": 10.0},
   "rollout": {
    "num_samples": 8,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "val": {"num_samples": 8, "top_p": 1.0, "top_k": -1},
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.7,
    "free_cache_engine": true,
    "enforce_eager": false,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "schedule": "strict",
    "keep_prefixes": false,
    "engine_kwargs": {}
   },
   "reward": {"entry": "compute_score", "timeout_s": 10.0},
   "overrides": [],
   "eval": {"instruction_variant": "boxed", "save_generations": false}
  },
  "convert": {"kind": "convert", "convert": {"dtype": "base", "trust_remote_code": false, "verify": true}}
 }
}
{{- end -}}
