{{- /* Generated from opd.config by `make schema`: do not edit. */ -}}

{{- /* The values as JSON, with the defaults that follow from device and recipe, and the rules' own names. */ -}}
{{- define "opd.filled" -}}
{{- $v := set (deepCopy .Values) "kind" .Chart.Name -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- if and (kindIs "invalid" (($v.data).split).of) (not (kindIs "invalid" (($v.data).split).part)) -}}{{- $_ := set $v.data.split "of" 2 -}}{{- end -}}
{{- if and (kindIs "invalid" (($v.data).split).seed) (not (kindIs "invalid" (($v.data).split).part)) -}}{{- $_ := set $v.data.split "seed" 42 -}}{{- end -}}
{{- if kindIs "invalid" ($v.data).num_workers -}}{{- $_ := set $v.data "num_workers" (ternary 0 8 (eq (toString $v.device) "cpu")) -}}{{- end -}}
{{- if kindIs "invalid" ($v.actor).log_prob_micro_batch_size_per_gpu -}}{{- $_ := set $v.actor "log_prob_micro_batch_size_per_gpu" ($v.actor).ppo_micro_batch_size_per_gpu -}}{{- end -}}
{{- if kindIs "invalid" ($v.actor).use_dynamic_bsz -}}{{- $_ := set $v.actor "use_dynamic_bsz" (and (eq (toString $v.kind) "grpo") (eq (toString $v.recipe) "grpo")) -}}{{- end -}}
{{- if kindIs "invalid" ($v.actor).use_remove_padding -}}{{- $_ := set $v.actor "use_remove_padding" (ternary false true (eq (toString $v.device) "cpu")) -}}{{- end -}}
{{- if kindIs "invalid" ($v.actor).dtype -}}{{- $_ := set $v.actor "dtype" (ternary "fp32" "bf16" (eq (toString $v.device) "cpu")) -}}{{- end -}}
{{- if kindIs "invalid" ($v.trainer).gpus_per_node -}}{{- $_ := set $v.trainer "gpus_per_node" (ternary 1 8 (eq (toString $v.device) "cpu")) -}}{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "eval" "passrate") -}}
{{- if kindIs "invalid" ($v.rollout).name -}}{{- $_ := set $v.rollout "name" (ternary "cpu" "vllm" (eq (toString $v.device) "cpu")) -}}{{- end -}}
{{- if kindIs "invalid" ($v.rollout).logprobs_every -}}{{- $_ := set $v.rollout "logprobs_every" (ternary 1 10 (eq (toString $v.device) "cpu")) -}}{{- end -}}
{{- if kindIs "invalid" ($v.rollout).num_agent_workers -}}{{- $_ := set $v.rollout "num_agent_workers" (ternary 0 8 (eq (toString $v.device) "cpu")) -}}{{- end -}}
{{- if kindIs "invalid" ($v.reward).num_workers -}}{{- $_ := set $v.reward "num_workers" (ternary 0 8 (eq (toString $v.device) "cpu")) -}}{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- $_ := set $v "row_length" (addf ($v.data).max_prompt_length ($v.data).max_response_length) -}}
{{- $_ := set $v "num_sharing" ($v.actor).ulysses_sequence_parallel_size -}}
{{- $_ := set $v "num_ranks" (mulf ($v.trainer).nnodes ($v.trainer).gpus_per_node) -}}
{{- $_ := set $v "num_groups" (maxf 1 (div $v.num_ranks $v.num_sharing)) -}}
{{- $_ := set $v "num_samples" (ternary 1 ($v.rollout).num_samples (kindIs "invalid" ($v.rollout).num_samples)) -}}
{{- $_ := set $v "mini_rows" (mulf ($v.actor).ppo_mini_batch_size $v.num_samples) -}}
{{- $_ := set $v "step_rows" (mulf ($v.data).train_batch_size $v.num_samples) -}}
{{- $_ := set $v "in_flight" (ternary (mulf 2 $v.step_rows) ($v.rollout).in_flight (kindIs "invalid" ($v.rollout).in_flight)) -}}
{{- $_ := set $v "max_age" (ternary (mulf 8 (div (sub (add $v.in_flight $v.step_rows) 1) $v.step_rows)) ($v.rollout).max_age (kindIs "invalid" ($v.rollout).max_age)) -}}
{{- end -}}
{{- toJson $v -}}
{{- end -}}

{{- /* The rules between keys, word for word those of the tool and the trainer: of each run, then of the cluster's part. */ -}}
{{- define "opd.checkRules" -}}
{{- range include "opd.runs" . | fromJsonArray -}}
{{- $v := include "opd.filled" . | fromJson -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- if and (eq (toString $v.device) "cpu") (not (kindIs "invalid" ($v.rollout).name)) (ne (toString ($v.rollout).name) "cpu") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.name" "value" ($v.rollout).name
  "rule" "device cpu samples with the rollout server `cpu`; vLLM has no build that syncs weights on a CPU"
  "fix" "remove rollout.name, or set device: cuda") -}}
{{- end -}}
{{- if and (eq (toString $v.device) "cuda") (eq (toString ($v.rollout).name) "cpu") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.name" "value" ($v.rollout).name
  "rule" "the rollout server `cpu` belongs to device cpu"
  "fix" "set device: cpu, or rollout.name: vllm") -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "eval" "passrate") -}}
{{- if and (eq (toString ($v.rollout).name) "vllm") (not (kindIs "invalid" ($v.rollout).temperature)) (or (gt (float64 ($v.rollout).temperature) 2.0) (and (gt (float64 ($v.rollout).temperature) 0.0) (lt (float64 ($v.rollout).temperature) 0.01))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.temperature" "value" ($v.rollout).temperature
  "rule" "vLLM samples at temperatures from 0.01 to 2, or greedily at 0; it takes a smaller one for 0.01, and refuses every request with a larger one"
  "fix" "use 0.01 to 2") -}}
{{- end -}}
{{- if and (eq (toString ($v.rollout).name) "vllm") (not (kindIs "invalid" (($v.rollout).val).temperature)) (or (gt (float64 (($v.rollout).val).temperature) 2.0) (and (gt (float64 (($v.rollout).val).temperature) 0.0) (lt (float64 (($v.rollout).val).temperature) 0.01))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.val.temperature" "value" (($v.rollout).val).temperature
  "rule" "vLLM samples at temperatures from 0.01 to 2, or greedily at 0; it takes a smaller one for 0.01, and refuses every request with a larger one"
  "fix" "use 0.01 to 2, or 0") -}}
{{- end -}}
{{- end -}}
{{- if and (eq (toString $v.device) "cpu") (has (toString ($v.model).attn_implementation) (list "flash_attention_2" "varlen")) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "model.attn_implementation" "value" ($v.model).attn_implementation
  "rule" "flash attention needs a CUDA device"
  "fix" "use sdpa") -}}
{{- end -}}
{{- if and (eq (toString $v.device) "cuda") (eq (toString ($v.model).attn_implementation) "varlen") (not ($v.actor).use_remove_padding) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "model.attn_implementation" "value" ($v.model).attn_implementation
  "rule" "varlen takes packed rows, and actor.use_remove_padding is false"
  "fix" "use sdpa, or actor.use_remove_padding: true") -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "sft" "eval" "passrate") -}}
{{- if and (not (kindIs "invalid" ($v.actor).ppo_max_token_len_per_gpu)) (lt (float64 (mulf ($v.actor).ppo_max_token_len_per_gpu $v.num_sharing)) (float64 $v.row_length)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.ppo_max_token_len_per_gpu" "value" ($v.actor).ppo_max_token_len_per_gpu
  "rule" (printf "a token budget (times ulysses_sequence_parallel_size %s) must hold the longest row: max_prompt_length + max_response_length = %s; verl asserts on it in mid-run" (include "opd.text" $v.num_sharing) (include "opd.text" $v.row_length))
  "fix" (printf "use at least %s, or remove the key" (include "opd.text" (div (sub (add $v.row_length $v.num_sharing) 1) $v.num_sharing)))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "opd" "opd-agent") -}}
{{- if and (kindIs "invalid" ($v.opd).train_tokens) (not (and (eq (toString $v.device) "cuda") ($v.actor).use_remove_padding (has (toString ($v.model).attn_implementation) (list "varlen" "flash_attention_2")))) (not (kindIs "invalid" ($v.actor).ppo_max_token_len_per_gpu)) (lt (float64 (mulf ($v.actor).ppo_max_token_len_per_gpu $v.num_sharing)) (float64 $v.row_length)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.ppo_max_token_len_per_gpu" "value" ($v.actor).ppo_max_token_len_per_gpu
  "rule" (printf "a token budget (times ulysses_sequence_parallel_size %s) must hold the longest row: max_prompt_length + max_response_length = %s; verl asserts on it in mid-run" (include "opd.text" $v.num_sharing) (include "opd.text" $v.row_length))
  "fix" (printf "use at least %s, or remove the key" (include "opd.text" (div (sub (add $v.row_length $v.num_sharing) 1) $v.num_sharing)))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "sft" "eval" "passrate") -}}
{{- if and (not (kindIs "invalid" ($v.actor).log_prob_max_token_len_per_gpu)) (lt (float64 (mulf ($v.actor).log_prob_max_token_len_per_gpu $v.num_sharing)) (float64 $v.row_length)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.log_prob_max_token_len_per_gpu" "value" ($v.actor).log_prob_max_token_len_per_gpu
  "rule" (printf "a token budget (times ulysses_sequence_parallel_size %s) must hold the longest row: max_prompt_length + max_response_length = %s; verl asserts on it in mid-run" (include "opd.text" $v.num_sharing) (include "opd.text" $v.row_length))
  "fix" (printf "use at least %s, or remove the key" (include "opd.text" (div (sub (add $v.row_length $v.num_sharing) 1) $v.num_sharing)))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "opd" "opd-agent") -}}
{{- if and (kindIs "invalid" ($v.opd).read_tokens) (not (and (eq (toString $v.device) "cuda") ($v.actor).use_remove_padding (has (toString ($v.model).attn_implementation) (list "varlen" "flash_attention_2")))) (not (kindIs "invalid" ($v.actor).log_prob_max_token_len_per_gpu)) (lt (float64 (mulf ($v.actor).log_prob_max_token_len_per_gpu $v.num_sharing)) (float64 $v.row_length)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.log_prob_max_token_len_per_gpu" "value" ($v.actor).log_prob_max_token_len_per_gpu
  "rule" (printf "a token budget (times ulysses_sequence_parallel_size %s) must hold the longest row: max_prompt_length + max_response_length = %s; verl asserts on it in mid-run" (include "opd.text" $v.num_sharing) (include "opd.text" $v.row_length))
  "fix" (printf "use at least %s, or remove the key" (include "opd.text" (div (sub (add $v.row_length $v.num_sharing) 1) $v.num_sharing)))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "eval" "passrate") -}}
{{- if not (kindIs "invalid" ($v.model).lora) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "model.lora" "value" ($v.model).lora
  "rule" "this kind trains nothing: adapters are for kinds that do"
  "fix" "remove the key; to ask a trained LoRA student, convert its checkpoint and give that folder as model.path") -}}
{{- end -}}
{{- end -}}
{{- if and (not ($v.data).filter_overlong) (eq (toString ($v.data).truncation) "left") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "data.truncation" "value" ($v.data).truncation
  "rule" "left truncation would cut the system prompt and the instruction first, so it is refused: an overlong prompt is dropped and counted, or is an error"
  "fix" "set data.filter_overlong: true, or data.truncation: error") -}}
{{- end -}}
{{- if and (kindIs "invalid" (($v.data).split).part) (not (kindIs "invalid" (($v.data).split).of)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "data.split.of" "value" (($v.data).split).of
  "rule" "it says what the parts are, and no data.split.part says which of them is used: all rows would be"
  "fix" "set data.split.part to 1, 2 and so on, or remove data.split.of") -}}
{{- end -}}
{{- if and (kindIs "invalid" (($v.data).split).part) (not (kindIs "invalid" (($v.data).split).seed)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "data.split.seed" "value" (($v.data).split).seed
  "rule" "it says what the parts are, and no data.split.part says which of them is used: all rows would be"
  "fix" "set data.split.part to 1, 2 and so on, or remove data.split.seed") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" (($v.data).split).part)) (gt (float64 (($v.data).split).part) (float64 (($v.data).split).of)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "data.split.part" "value" (($v.data).split).part
  "rule" (printf "there are %s parts (data.split.of), counted from 1" (include "opd.text" (($v.data).split).of))
  "fix" (printf "use at most %s, or a larger data.split.of" (include "opd.text" (($v.data).split).of))) -}}
{{- end -}}
{{- if mod ($v.data).train_batch_size ($v.actor).ppo_mini_batch_size -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.ppo_mini_batch_size" "value" ($v.actor).ppo_mini_batch_size
  "rule" (printf "the mini-batch must divide data.train_batch_size (%s)" (include "opd.text" ($v.data).train_batch_size))
  "fix" (printf "use a divisor of %s, or a train_batch_size that is a multiple of %s" (include "opd.text" ($v.data).train_batch_size) (include "opd.text" ($v.actor).ppo_mini_batch_size))) -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "sft") -}}
{{- if and (not (mod ($v.data).train_batch_size ($v.actor).ppo_mini_batch_size)) (not ($v.actor).use_dynamic_bsz) (not (mod (mulf ($v.actor).ppo_mini_batch_size $v.num_samples) $v.num_groups)) (mod (div (mulf ($v.actor).ppo_mini_batch_size $v.num_samples) $v.num_groups) ($v.actor).ppo_micro_batch_size_per_gpu) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.ppo_micro_batch_size_per_gpu" "value" ($v.actor).ppo_micro_batch_size_per_gpu
  "rule" (printf "with use_dynamic_bsz off the micro-batch must divide a rank's rows (%s prompts x %s samples / %s data-parallel ranks = %s)" (include "opd.text" ($v.actor).ppo_mini_batch_size) (include "opd.text" $v.num_samples) (include "opd.text" $v.num_groups) (include "opd.text" (div (mulf ($v.actor).ppo_mini_batch_size $v.num_samples) $v.num_groups)))
  "fix" (printf "use a divisor of %s, or use_dynamic_bsz: true" (include "opd.text" (div (mulf ($v.actor).ppo_mini_batch_size $v.num_samples) $v.num_groups)))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "opd" "opd-agent") -}}
{{- if and (kindIs "invalid" ($v.opd).train_tokens) (not (and (eq (toString $v.device) "cuda") ($v.actor).use_remove_padding (has (toString ($v.model).attn_implementation) (list "varlen" "flash_attention_2")))) (not (mod ($v.data).train_batch_size ($v.actor).ppo_mini_batch_size)) (not ($v.actor).use_dynamic_bsz) (not (mod (mulf ($v.actor).ppo_mini_batch_size $v.num_samples) $v.num_groups)) (mod (div (mulf ($v.actor).ppo_mini_batch_size $v.num_samples) $v.num_groups) ($v.actor).ppo_micro_batch_size_per_gpu) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.ppo_micro_batch_size_per_gpu" "value" ($v.actor).ppo_micro_batch_size_per_gpu
  "rule" (printf "with use_dynamic_bsz off the micro-batch must divide a rank's rows (%s prompts x %s samples / %s data-parallel ranks = %s)" (include "opd.text" ($v.actor).ppo_mini_batch_size) (include "opd.text" $v.num_samples) (include "opd.text" $v.num_groups) (include "opd.text" (div (mulf ($v.actor).ppo_mini_batch_size $v.num_samples) $v.num_groups)))
  "fix" (printf "use a divisor of %s, or use_dynamic_bsz: true" (include "opd.text" (div (mulf ($v.actor).ppo_mini_batch_size $v.num_samples) $v.num_groups)))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "sft") -}}
{{- if and (not (mod ($v.data).train_batch_size ($v.actor).ppo_mini_batch_size)) (not ($v.actor).use_dynamic_bsz) (not (mod (mulf ($v.data).train_batch_size $v.num_samples) $v.num_groups)) (mod (div (mulf ($v.data).train_batch_size $v.num_samples) $v.num_groups) ($v.actor).log_prob_micro_batch_size_per_gpu) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.log_prob_micro_batch_size_per_gpu" "value" ($v.actor).log_prob_micro_batch_size_per_gpu
  "rule" (printf "with use_dynamic_bsz off the micro-batch must divide a rank's rows (%s prompts x %s samples / %s data-parallel ranks = %s)" (include "opd.text" ($v.data).train_batch_size) (include "opd.text" $v.num_samples) (include "opd.text" $v.num_groups) (include "opd.text" (div (mulf ($v.data).train_batch_size $v.num_samples) $v.num_groups)))
  "fix" (printf "use a divisor of %s, or use_dynamic_bsz: true" (include "opd.text" (div (mulf ($v.data).train_batch_size $v.num_samples) $v.num_groups)))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "opd" "opd-agent") -}}
{{- if and (kindIs "invalid" ($v.opd).read_tokens) (not (and (eq (toString $v.device) "cuda") ($v.actor).use_remove_padding (has (toString ($v.model).attn_implementation) (list "varlen" "flash_attention_2")))) (not (mod ($v.data).train_batch_size ($v.actor).ppo_mini_batch_size)) (not ($v.actor).use_dynamic_bsz) (not (mod (mulf ($v.data).train_batch_size $v.num_samples) $v.num_groups)) (mod (div (mulf ($v.data).train_batch_size $v.num_samples) $v.num_groups) ($v.actor).log_prob_micro_batch_size_per_gpu) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.log_prob_micro_batch_size_per_gpu" "value" ($v.actor).log_prob_micro_batch_size_per_gpu
  "rule" (printf "with use_dynamic_bsz off the micro-batch must divide a rank's rows (%s prompts x %s samples / %s data-parallel ranks = %s)" (include "opd.text" ($v.data).train_batch_size) (include "opd.text" $v.num_samples) (include "opd.text" $v.num_groups) (include "opd.text" (div (mulf ($v.data).train_batch_size $v.num_samples) $v.num_groups)))
  "fix" (printf "use a divisor of %s, or use_dynamic_bsz: true" (include "opd.text" (div (mulf ($v.data).train_batch_size $v.num_samples) $v.num_groups)))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "eval" "passrate") -}}
{{- if mod $v.num_ranks ($v.rollout).tensor_parallel_size -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.tensor_parallel_size" "value" ($v.rollout).tensor_parallel_size
  "rule" (printf "it must divide the number of ranks (nnodes x gpus_per_node = %s)" (include "opd.text" $v.num_ranks))
  "fix" "use a divisor") -}}
{{- end -}}
{{- end -}}
{{- if mod $v.num_ranks ($v.actor).ulysses_sequence_parallel_size -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.ulysses_sequence_parallel_size" "value" ($v.actor).ulysses_sequence_parallel_size
  "rule" (printf "it must divide the number of ranks (nnodes x gpus_per_node = %s)" (include "opd.text" $v.num_ranks))
  "fix" "use a divisor") -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft") -}}
{{- if mod $v.mini_rows $v.num_groups -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.ppo_mini_batch_size" "value" ($v.actor).ppo_mini_batch_size
  "rule" (printf "a mini-batch's rows (x %s samples = %s) must divide evenly over the %s data-parallel ranks" (include "opd.text" $v.num_samples) (include "opd.text" $v.mini_rows) (include "opd.text" $v.num_groups))
  "fix" (printf "use a multiple of %s" (include "opd.text" $v.num_groups))) -}}
{{- end -}}
{{- end -}}
{{- if and (gt (float64 $v.num_sharing) 1.0) (not ($v.actor).use_remove_padding) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.use_remove_padding" "value" ($v.actor).use_remove_padding
  "rule" "ranks that share a sequence (actor.ulysses_sequence_parallel_size) take slices of packed rows"
  "fix" "set it to true, or actor.ulysses_sequence_parallel_size: 1") -}}
{{- end -}}
{{- if and (gt (float64 $v.num_sharing) 1.0) (not (and (gt (float64 $v.num_sharing) 1.0) (not ($v.actor).use_remove_padding))) (not (kindIs "invalid" ($v.model).attn_implementation)) (not (has (toString ($v.model).attn_implementation) (list "varlen" "sdpa"))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "model.attn_implementation" "value" ($v.model).attn_implementation
  "rule" "ranks that share a sequence (actor.ulysses_sequence_parallel_size) must exchange heads for tokens around attention, which only varlen and sdpa can"
  "fix" "use varlen or sdpa, or actor.ulysses_sequence_parallel_size: 1") -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "sft" "eval" "passrate") -}}
{{- if eq (toString ($v.actor).gradient_checkpointing) "auto" -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.gradient_checkpointing" "value" ($v.actor).gradient_checkpointing
  "rule" "only distillation (kind opd, opd-agent) makes the memory plan that `auto` asks"
  "fix" "use true or false") -}}
{{- end -}}
{{- if eq (toString ($v.actor).param_offload) "auto" -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.param_offload" "value" ($v.actor).param_offload
  "rule" "only distillation (kind opd, opd-agent) makes the memory plan that `auto` asks"
  "fix" "use true or false") -}}
{{- end -}}
{{- if eq (toString ($v.actor).optimizer_offload) "auto" -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.optimizer_offload" "value" ($v.actor).optimizer_offload
  "rule" "only distillation (kind opd, opd-agent) makes the memory plan that `auto` asks"
  "fix" "use true or false") -}}
{{- end -}}
{{- end -}}
{{- if and (eq (toString ($v.reward).function) "custom") (kindIs "invalid" ($v.reward).path) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "reward.path" "value" ($v.reward).path
  "rule" "a custom reward function needs its file"
  "fix" "set reward.path: FILE.py") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" ($v.reward).function)) (ne (toString ($v.reward).function) "custom") (not (kindIs "invalid" ($v.reward).path)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "reward.function" "value" ($v.reward).function
  "rule" "reward.path belongs to function custom"
  "fix" "set reward.function: custom, or remove reward.path") -}}
{{- end -}}
{{- if has $v.kind (list "opd" "opd-agent") -}}
{{- if and (not (kindIs "invalid" $v.teacher)) (gt (float64 (len $v.teachers)) 0.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "teachers" "value" (keys $v.teachers | sortAlpha)
  "rule" "all rows have the one teacher, or each has one of several"
  "fix" "remove teacher (TEACHER_MODEL_PATH sets it too), or give it a name under teachers too; or remove teachers and route") -}}
{{- end -}}
{{- if and (gt (float64 (len $v.teachers)) 0.0) (eq (float64 (len ($v.route).to)) 0.0) (kindIs "invalid" ($v.route).all) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "route.to" "value" ($v.route).to
  "rule" "there are several teachers, and nothing says which one reads a row"
  "fix" (printf "give the name of a teacher for each value in the data's column %s: to: {VALUE: NAME}, or one for every row: all: NAME" (include "opd.text" ($v.route).by))) -}}
{{- end -}}
{{- if and (not (kindIs "invalid" ($v.route).all)) (gt (float64 (len ($v.route).to)) 0.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "route.all" "value" ($v.route).all
  "rule" "one reads every row, or each row has its own by route.to"
  "fix" "remove route.all or route.to") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" ($v.route).all)) (not (has (toString ($v.route).all) (keys $v.teachers | sortAlpha))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "route.all" "value" ($v.route).all
  "rule" "there is no teacher of that name under teachers"
  "fix" "name one that is there, or add it") -}}
{{- end -}}
{{- range $index, $item := keys ($v.route).to | sortAlpha -}}
{{- if not (has (toString (index ($v.route).to $item)) (keys $v.teachers | sortAlpha)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "route.to.%s" (include "opd.text" $item)) "value" (index ($v.route).to $item)
  "rule" "there is no teacher of that name under teachers"
  "fix" "name one that is there, or add it") -}}
{{- end -}}
{{- end -}}
{{- if and (gt (float64 (len $v.teachers)) 0.0) (gt (float64 ($v.actor).ulysses_sequence_parallel_size) 1.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "actor.ulysses_sequence_parallel_size" "value" ($v.actor).ulysses_sequence_parallel_size
  "rule" "ranks that share a sequence read one teacher's hidden states for all their tokens, and there are several teachers"
  "fix" "set it to 1, or use one teacher") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $v.teacher)) (not (kindIs "invalid" ($v.teacher).refresh_every)) (gt (float64 ($v.teacher).refresh_every) 0.0) (or (ne ($v.teacher).path ($v.model).path) (ne ($v.teacher).revision ($v.model).revision)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "teacher.refresh_every" "value" ($v.teacher).refresh_every
  "rule" "a teacher that is refreshed gets the student's weights, so it is the student: model.path, and its revision where it has one"
  "fix" "give it the student's path and revision, or remove the key") -}}
{{- end -}}
{{- range $index, $item := keys $v.teachers | sortAlpha -}}
{{- if and (not (kindIs "invalid" (index (index $v.teachers $item) "refresh_every"))) (gt (float64 (index (index $v.teachers $item) "refresh_every")) 0.0) (or (ne (index (index $v.teachers $item) "path") ($v.model).path) (ne (index (index $v.teachers $item) "revision") ($v.model).revision)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "teachers.%s.refresh_every" (include "opd.text" $item)) "value" (index (index $v.teachers $item) "refresh_every")
  "rule" "a teacher that is refreshed gets the student's weights, so it is the student: model.path, and its revision where it has one"
  "fix" "give it the student's path and revision, or remove the key") -}}
{{- end -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $v.teacher)) (not (kindIs "invalid" ($v.teacher).prompt)) (not (regexMatch "(^|[^{])([{][{])*[{][^{}]" (toString ($v.teacher).prompt))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "teacher.prompt" "value" ($v.teacher).prompt
  "rule" "no name stands in braces in it, so the teacher would read the same text in the place of every row's question"
  "fix" "write {prompt}, which is the row's last user message, or {COLUMN} of data.train, or remove the key") -}}
{{- end -}}
{{- range $index, $item := keys $v.teachers | sortAlpha -}}
{{- if and (not (kindIs "invalid" (index (index $v.teachers $item) "prompt"))) (not (regexMatch "(^|[^{])([{][{])*[{][^{}]" (toString (index (index $v.teachers $item) "prompt")))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "teachers.%s.prompt" (include "opd.text" $item)) "value" (index (index $v.teachers $item) "prompt")
  "rule" "no name stands in braces in it, so the teacher would read the same text in the place of every row's question"
  "fix" "write {prompt}, which is the row's last user message, or {COLUMN} of data.train, or remove the key") -}}
{{- end -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $v.teacher)) (not (kindIs "invalid" ($v.teacher).refresh_every)) (gt (float64 ($v.teacher).refresh_every) 0.0) (not (kindIs "invalid" ($v.model).lora)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "teacher.refresh_every" "value" ($v.teacher).refresh_every
  "rule" "a LoRA student's weights are a frozen model and adapters, which a teacher does not have"
  "fix" "remove the key: the teacher stays the model that the student began as; or remove model.lora") -}}
{{- end -}}
{{- range $index, $item := keys $v.teachers | sortAlpha -}}
{{- if and (not (kindIs "invalid" (index (index $v.teachers $item) "refresh_every"))) (gt (float64 (index (index $v.teachers $item) "refresh_every")) 0.0) (not (kindIs "invalid" ($v.model).lora)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "teachers.%s.refresh_every" (include "opd.text" $item)) "value" (index (index $v.teachers $item) "refresh_every")
  "rule" "a LoRA student's weights are a frozen model and adapters, which a teacher does not have"
  "fix" "remove the key: the teacher stays the model that the student began as; or remove model.lora") -}}
{{- end -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $v.teacher)) (not (kindIs "invalid" ($v.teacher).max_prompt_length)) (kindIs "invalid" ($v.teacher).prompt) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "teacher.max_prompt_length" "value" ($v.teacher).max_prompt_length
  "rule" "this teacher has no `prompt` of its own, and reads the student's prompts, whose length is data.max_prompt_length"
  "fix" "give it a prompt, or remove the key") -}}
{{- end -}}
{{- range $index, $item := keys $v.teachers | sortAlpha -}}
{{- if and (not (kindIs "invalid" (index (index $v.teachers $item) "max_prompt_length"))) (kindIs "invalid" (index (index $v.teachers $item) "prompt")) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "teachers.%s.max_prompt_length" (include "opd.text" $item)) "value" (index (index $v.teachers $item) "max_prompt_length")
  "rule" "this teacher has no `prompt` of its own, and reads the student's prompts, whose length is data.max_prompt_length"
  "fix" "give it a prompt, or remove the key") -}}
{{- end -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $v.teacher)) (kindIs "invalid" ($v.opd).read_tokens) (not (and (eq (toString $v.device) "cuda") ($v.actor).use_remove_padding (has (toString ($v.model).attn_implementation) (list "varlen" "flash_attention_2")))) (not (kindIs "invalid" ($v.teacher).max_prompt_length)) (not (kindIs "invalid" ($v.actor).log_prob_max_token_len_per_gpu)) ($v.actor).use_dynamic_bsz (lt (float64 (mulf ($v.actor).log_prob_max_token_len_per_gpu $v.num_sharing)) (float64 (addf ($v.teacher).max_prompt_length ($v.data).max_response_length))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "teacher.max_prompt_length" "value" ($v.teacher).max_prompt_length
  "rule" (printf "the token budget actor.log_prob_max_token_len_per_gpu (times ulysses_sequence_parallel_size %s) must hold the teacher's longest row, its own prompt and max_response_length" (include "opd.text" $v.num_sharing))
  "fix" "raise actor.log_prob_max_token_len_per_gpu, or give a smaller max_prompt_length") -}}
{{- end -}}
{{- range $index, $item := keys $v.teachers | sortAlpha -}}
{{- if and (kindIs "invalid" ($v.opd).read_tokens) (not (and (eq (toString $v.device) "cuda") ($v.actor).use_remove_padding (has (toString ($v.model).attn_implementation) (list "varlen" "flash_attention_2")))) (not (kindIs "invalid" (index (index $v.teachers $item) "max_prompt_length"))) (not (kindIs "invalid" ($v.actor).log_prob_max_token_len_per_gpu)) ($v.actor).use_dynamic_bsz (lt (float64 (mulf ($v.actor).log_prob_max_token_len_per_gpu $v.num_sharing)) (float64 (addf (index (index $v.teachers $item) "max_prompt_length") ($v.data).max_response_length))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "teachers.%s.max_prompt_length" (include "opd.text" $item)) "value" (index (index $v.teachers $item) "max_prompt_length")
  "rule" (printf "the token budget actor.log_prob_max_token_len_per_gpu (times ulysses_sequence_parallel_size %s) must hold the teacher's longest row, its own prompt and max_response_length" (include "opd.text" $v.num_sharing))
  "fix" "raise actor.log_prob_max_token_len_per_gpu, or give a smaller max_prompt_length") -}}
{{- end -}}
{{- end -}}
{{- if and (not (kindIs "invalid" ($v.opd).max_length)) (lt (float64 ($v.opd).max_length) (float64 $v.row_length)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.max_length" "value" ($v.opd).max_length
  "rule" (printf "it must hold max_prompt_length + max_response_length = %s: a smaller value would cut rows silently" (include "opd.text" $v.row_length))
  "fix" (printf "use %s, or remove the key" (include "opd.text" $v.row_length))) -}}
{{- end -}}
{{- if and (eq (toString ($v.opd).loss_type) "jsd") (not (kindIs "invalid" ($v.opd).beta)) (not (and (lt 0.0 (float64 ($v.opd).beta)) (lt (float64 ($v.opd).beta) 1.0))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.beta" "value" ($v.opd).beta
  "rule" "jsd needs 0 < beta < 1"
  "fix" "use 0.5, or remove the key") -}}
{{- end -}}
{{- if and (ne (toString ($v.opd).loss_type) "jsd") (not (kindIs "invalid" ($v.opd).beta)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.beta" "value" ($v.opd).beta
  "rule" (printf "beta weighs the mixture of jsd; loss_type %s has none" (include "opd.text" ($v.opd).loss_type))
  "fix" "remove opd.beta, or set opd.loss_type: jsd") -}}
{{- end -}}
{{- if and (has (toString ($v.opd).loss_type) (list "topk_reverse_kl")) (kindIs "invalid" ($v.opd).top_k) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.loss_type" "value" ($v.opd).loss_type
  "rule" "the teacher's tokens that it compares one by one need a number"
  "fix" "set opd.top_k: 64, or use reverse_kl, which compares all") -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (not (kindIs "invalid" ($item).loss_type)) (has (toString ($item).loss_type) (list "topk_reverse_kl")) (kindIs "invalid" ($v.opd).top_k) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.loss_type" (include "opd.text" $index)) "value" ($item).loss_type
  "rule" "the teacher's tokens that it compares one by one need a number"
  "fix" "set opd.top_k: 64, or use reverse_kl, which compares all") -}}
{{- end -}}
{{- end -}}
{{- if and (not (kindIs "invalid" ($v.opd).top_k)) (ne (toString ($v.opd).loss_type) "topk_reverse_kl") (eq (float64 (len ($v.opd).stages)) 0.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.top_k" "value" ($v.opd).top_k
  "rule" (printf "it belongs to loss_type topk_reverse_kl; loss_type %s compares all tokens" (include "opd.text" ($v.opd).loss_type))
  "fix" "remove the key, or set opd.loss_type: topk_reverse_kl") -}}
{{- end -}}
{{- if and (gt (float64 (($v.opd).policy).weight) 0.0) (eq (float64 $v.num_samples) 1.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.policy.weight" "value" (($v.opd).policy).weight
  "rule" "advantages compare the samples of one prompt, and rollout.num_samples is 1"
  "fix" "set rollout.num_samples to 2 or more, or the weight to 0") -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (not (kindIs "invalid" ($item).policy_weight)) (gt (float64 ($item).policy_weight) 0.0) (eq (float64 $v.num_samples) 1.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.policy_weight" (include "opd.text" $index)) "value" ($item).policy_weight
  "rule" "advantages compare the samples of one prompt, and rollout.num_samples is 1"
  "fix" "set rollout.num_samples to 2 or more, or the weight to 0") -}}
{{- end -}}
{{- end -}}
{{- if and (gt (float64 (($v.opd).policy).weight) 0.0) (eq (toString (($v.opd).horizon).applies) "generate") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.policy.weight" "value" (($v.opd).policy).weight
  "rule" "answers that end at the horizon (opd.horizon.applies: generate) are not whole, so that their scores mean nothing"
  "fix" "use opd.horizon.applies: train, or set the weight to 0") -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (not (kindIs "invalid" ($item).policy_weight)) (gt (float64 ($item).policy_weight) 0.0) (eq (toString (($v.opd).horizon).applies) "generate") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.policy_weight" (include "opd.text" $index)) "value" ($item).policy_weight
  "rule" "answers that end at the horizon (opd.horizon.applies: generate) are not whole, so that their scores mean nothing"
  "fix" "use opd.horizon.applies: train, or set the weight to 0") -}}
{{- end -}}
{{- end -}}
{{- if and (eq (float64 (len ($v.opd).stages)) 0.0) (eq (float64 ($v.opd).divergence_weight) 0.0) (eq (float64 (($v.opd).policy).weight) 0.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.divergence_weight" "value" ($v.opd).divergence_weight
  "rule" "both parts of the loss have weight 0, so that nothing is learnt"
  "fix" "set opd.divergence_weight: 1, or opd.policy.weight above 0") -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (eq (float64 (ternary ($v.opd).divergence_weight ($item).divergence_weight (kindIs "invalid" ($item).divergence_weight))) 0.0) (eq (float64 (ternary (($v.opd).policy).weight ($item).policy_weight (kindIs "invalid" ($item).policy_weight))) 0.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.divergence_weight" (include "opd.text" $index)) "value" ($item).divergence_weight
  "rule" "both parts of the stage's loss have weight 0"
  "fix" "give the stage a divergence_weight or a policy_weight above 0") -}}
{{- end -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (eq (toString ($item).rollouts) "teacher") (or (gt (float64 (ternary (($v.opd).policy).weight ($item).policy_weight (kindIs "invalid" ($item).policy_weight))) 0.0) (eq (toString ($item).weight_schedule) "linear")) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.rollouts" (include "opd.text" $index)) "value" ($item).rollouts
  "rule" "a policy gradient is of answers that the student has sampled"
  "fix" "use rollouts: student, or policy_weight: 0 and weight_schedule: constant") -}}
{{- end -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (eq (toString ($item).rollouts) "teacher") (eq (toString (ternary ($v.opd).loss_type ($item).loss_type (kindIs "invalid" ($item).loss_type))) "sampled_reverse_kl") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.rollouts" (include "opd.text" $index)) "value" ($item).rollouts
  "rule" "the log ratio of a sampled token estimates the reverse KL where the student has sampled it"
  "fix" "use rollouts: student, or loss_type: reverse_kl") -}}
{{- end -}}
{{- end -}}
{{- if and (ne (toString ((($v.opd).importance).problems).weights) "none") (kindIs "invalid" ((($v.opd).importance).problems).pass_rates) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.importance.problems.pass_rates" "value" ((($v.opd).importance).problems).pass_rates
  "rule" (printf "weights %s follow from the prompts' pass rates" (include "opd.text" ((($v.opd).importance).problems).weights))
  "fix" "name the file: `pass_rates.parquet` of a run of kind passrate") -}}
{{- end -}}
{{- if and (eq (toString ((($v.opd).importance).problems).weights) "none") (not (kindIs "invalid" ((($v.opd).importance).problems).pass_rates)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.importance.problems.pass_rates" "value" ((($v.opd).importance).problems).pass_rates
  "rule" "pass rates are read for weights only, and opd.importance.problems.weights is none"
  "fix" "set opd.importance.problems.weights: competence, or remove the key") -}}
{{- end -}}
{{- if and (ne (toString ((($v.opd).importance).problems).weights) "competence") (ne (float64 ((($v.opd).importance).problems).alpha) 1.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.importance.problems.alpha" "value" ((($v.opd).importance).problems).alpha
  "rule" (printf "an exponent is given for weights: competence only; they are %s" (include "opd.text" ((($v.opd).importance).problems).weights))
  "fix" "set opd.importance.problems.weights: competence, or remove the key") -}}
{{- end -}}
{{- if and (ne (toString ((($v.opd).importance).problems).weights) "competence") (ne (float64 ((($v.opd).importance).problems).beta) 1.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.importance.problems.beta" "value" ((($v.opd).importance).problems).beta
  "rule" (printf "an exponent is given for weights: competence only; they are %s" (include "opd.text" ((($v.opd).importance).problems).weights))
  "fix" "set opd.importance.problems.weights: competence, or remove the key") -}}
{{- end -}}
{{- if and (or (not (kindIs "invalid" (((($v.opd).importance).problems).recompute).every)) (((($v.opd).importance).problems).recompute).at_stages) (eq (toString ((($v.opd).importance).problems).weights) "none") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.importance.problems.weights" "value" ((($v.opd).importance).problems).weights
  "rule" "pass rates are measured again for weights only"
  "fix" "set opd.importance.problems.weights: competence, or remove opd.importance.problems.recompute") -}}
{{- end -}}
{{- if and (or (not (kindIs "invalid" (((($v.opd).importance).problems).recompute).every)) (((($v.opd).importance).problems).recompute).at_stages) ((($v.opd).importance).problems).drop -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.importance.problems.drop" "value" ((($v.opd).importance).problems).drop
  "rule" "prompts of weight 0 that have left the data could not come back when pass rates are measured again"
  "fix" "set drop: false, or remove opd.importance.problems.recompute") -}}
{{- end -}}
{{- if and (or (not (kindIs "invalid" (((($v.opd).importance).problems).recompute).every)) (((($v.opd).importance).problems).recompute).at_stages) (ne (toString ((($v.opd).importance).problems).weights) "moment_matched") (lt (float64 (((($v.opd).importance).problems).recompute).num_samples) 2.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.importance.problems.recompute.num_samples" "value" (((($v.opd).importance).problems).recompute).num_samples
  "rule" "no weight could follow from pass rates of so few answers"
  "fix" "set opd.importance.problems.recompute.num_samples: 8, or at least 2") -}}
{{- end -}}
{{- if and (or (not (kindIs "invalid" (((($v.opd).importance).problems).recompute).every)) (((($v.opd).importance).problems).recompute).at_stages) (eq (toString ((($v.opd).importance).problems).weights) "moment_matched") (lt (float64 (((($v.opd).importance).problems).recompute).num_samples) 3.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.importance.problems.recompute.num_samples" "value" (((($v.opd).importance).problems).recompute).num_samples
  "rule" "no weight could follow from pass rates of so few answers"
  "fix" "set opd.importance.problems.recompute.num_samples: 8, or at least 3") -}}
{{- end -}}
{{- if and (((($v.opd).importance).problems).recompute).at_stages (lt (float64 (len ($v.opd).stages)) 2.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.importance.problems.recompute.at_stages" "value" (((($v.opd).importance).problems).recompute).at_stages
  "rule" "the run has no second stage"
  "fix" "give opd.stages, or use opd.importance.problems.recompute.every") -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (kindIs "invalid" ($item).until) (lt (float64 (addf $index 1)) (float64 (len ($v.opd).stages))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.until" (include "opd.text" $index)) "value" ($item).until
  "rule" "a stage that another follows has an end"
  "fix" "give its last step, or below 1 the share of the run's steps: until: 0.5") -}}
{{- end -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (not (kindIs "invalid" ($item).until)) (ge (float64 (addf $index 1)) (float64 (len ($v.opd).stages))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.until" (include "opd.text" $index)) "value" ($item).until
  "rule" "the last stage ends with the run"
  "fix" "remove the key, or add the stage that follows") -}}
{{- end -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if ne (not (kindIs "invalid" ($item).beta)) (eq (toString ($item).loss_type) "jsd") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.beta" (include "opd.text" $index)) "value" ($item).beta
  "rule" "beta weighs the mixture of the stage's own loss_type jsd, and is given with it"
  "fix" "set beta: 0.5 with loss_type: jsd, and none with another") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "opd") -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (eq (toString ($item).rollouts) "teacher") (kindIs "invalid" ($v.opd).teacher_answers) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.rollouts" (include "opd.text" $index)) "value" ($item).rollouts
  "rule" "the teacher's answers are read from files, nothing samples them in the run"
  "fix" "set opd.teacher_answers to eval/generations.parquet of an evaluation of the teacher on data.train") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "opd-agent") -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if eq (toString ($item).rollouts) "teacher" -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.rollouts" (include "opd.text" $index)) "value" ($item).rollouts
  "rule" "a file of answers holds no conversations with tools"
  "fix" "use rollouts: student, or kind: opd") -}}
{{- end -}}
{{- end -}}
{{- if eq (toString (($v.opd).horizon).applies) "generate" -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.horizon.applies" "value" (($v.opd).horizon).applies
  "rule" "a conversation with tools has a length for each of its turns, and is ended by data.max_response_length"
  "fix" "use applies: train") -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "opd" "opd-agent") -}}
{{- if and (not (kindIs "invalid" (($v.opd).horizon).grow_until)) (kindIs "invalid" (($v.opd).horizon).tokens) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.horizon.grow_until" "value" (($v.opd).horizon).grow_until
  "rule" "a horizon grows from its tokens in the first step"
  "fix" "set opd.horizon.tokens, or remove the key") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" ($v.opd).reward_beta)) (eq (float64 ($v.rollout).num_samples) 1.0) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.reward_beta" "value" ($v.opd).reward_beta
  "rule" "reward weighting compares the samples of one prompt, and rollout.num_samples is 1"
  "fix" "set rollout.num_samples to 2 or more, or remove opd.reward_beta") -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo") -}}
{{- if eq (toString ($v.rollout).schedule) "carry" -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.schedule" "value" ($v.rollout).schedule
  "rule" "a policy gradient compares a prompt's answers with one another, and corrects by one model's probabilities of them"
  "fix" "use rollout.schedule: strict") -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "opd-agent") -}}
{{- if eq (toString ($v.rollout).schedule) "carry" -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.schedule" "value" ($v.rollout).schedule
  "rule" "a conversation with tools would have to keep the state of its tools over an update"
  "fix" "use rollout.schedule: strict") -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "eval" "passrate") -}}
{{- if eq (toString ($v.rollout).schedule) "carry" -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.schedule" "value" ($v.rollout).schedule
  "rule" "nothing is trained here, so nothing is carried over an update"
  "fix" "use rollout.schedule: strict") -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "opd") -}}
{{- if and (eq (toString ($v.rollout).schedule) "carry") (not (kindIs "invalid" ($v.opd).reward_beta)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.reward_beta" "value" ($v.opd).reward_beta
  "rule" "reward weighting compares the answers of one prompt, which rollout.schedule carry trains on in different updates"
  "fix" "use rollout.schedule: strict, or remove opd.reward_beta") -}}
{{- end -}}
{{- if and (gt (float64 (($v.opd).policy).weight) 0.0) (eq (toString ($v.rollout).schedule) "carry") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.policy.weight" "value" (($v.opd).policy).weight
  "rule" "a policy gradient compares the answers of one prompt, which rollout.schedule carry trains on in different updates"
  "fix" "use rollout.schedule: strict, or a weight of 0") -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (not (kindIs "invalid" ($item).policy_weight)) (gt (float64 ($item).policy_weight) 0.0) (eq (toString ($v.rollout).schedule) "carry") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.policy_weight" (include "opd.text" $index)) "value" ($item).policy_weight
  "rule" "a policy gradient compares the answers of one prompt, which rollout.schedule carry trains on in different updates"
  "fix" "use rollout.schedule: strict, or a weight of 0") -}}
{{- end -}}
{{- end -}}
{{- if and (has (toString ($v.opd).loss_type) (list "sampled_reverse_kl")) (eq (toString ($v.rollout).schedule) "carry") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.loss_type" "value" ($v.opd).loss_type
  "rule" "it estimates the reverse KL from tokens of the student as it is, and rollout.schedule carry trains on earlier weights' tokens"
  "fix" "use rollout.schedule: strict, or reverse_kl, which is exact whoever wrote the tokens") -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (not (kindIs "invalid" ($item).loss_type)) (has (toString ($item).loss_type) (list "sampled_reverse_kl")) (eq (toString ($v.rollout).schedule) "carry") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.loss_type" (include "opd.text" $index)) "value" ($item).loss_type
  "rule" "it estimates the reverse KL from tokens of the student as it is, and rollout.schedule carry trains on earlier weights' tokens"
  "fix" "use rollout.schedule: strict, or reverse_kl, which is exact whoever wrote the tokens") -}}
{{- end -}}
{{- end -}}
{{- range $index, $item := ($v.opd).stages -}}
{{- if and (eq (toString ($v.rollout).schedule) "carry") (eq (toString ($item).rollouts) "teacher") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" (printf "opd.stages.%s.rollouts" (include "opd.text" $index)) "value" ($item).rollouts
  "rule" "answers that are read from a file are complete: there is nothing to carry over an update"
  "fix" "use rollout.schedule: strict, or rollouts: student") -}}
{{- end -}}
{{- end -}}
{{- if and (eq (toString ($v.rollout).schedule) "carry") (eq (toString (($v.opd).horizon).applies) "generate") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "opd.horizon.applies" "value" (($v.opd).horizon).applies
  "rule" "under rollout.schedule carry an answer is begun in one step and ends in another, whose horizon may be a different one"
  "fix" "use rollout.schedule: strict, or applies: train") -}}
{{- end -}}
{{- if and (eq (toString ($v.rollout).schedule) "carry") (lt (float64 $v.in_flight) (float64 $v.step_rows)) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.in_flight" "value" ($v.rollout).in_flight
  "rule" (printf "fewer answers at once than an update trains on (%s) would leave nothing to carry" (include "opd.text" $v.step_rows))
  "fix" (printf "use at least %s; twice as many is the default" (include "opd.text" $v.step_rows))) -}}
{{- end -}}
{{- if and (eq (toString ($v.rollout).schedule) "carry") (ge (float64 $v.in_flight) (float64 $v.step_rows)) (gt (float64 (addf $v.in_flight (maxf (subf $v.in_flight $v.step_rows) $v.step_rows))) (float64 (mulf $v.max_age $v.step_rows))) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.max_age" "value" ($v.rollout).max_age
  "rule" (printf "with %s answers at once (rollout.in_flight) and %s an update, some would wait longer for theirs" (include "opd.text" $v.in_flight) (include "opd.text" $v.step_rows))
  "fix" (printf "use at least %s, or a smaller rollout.in_flight" (include "opd.text" (div (sub (add (addf $v.in_flight (maxf (subf $v.in_flight $v.step_rows) $v.step_rows)) $v.step_rows) 1) $v.step_rows)))) -}}
{{- end -}}
{{- if and (eq (toString ($v.rollout).schedule) "carry") ($v.rollout).keep_prefixes ($v.rollout).free_cache_engine -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.keep_prefixes" "value" ($v.rollout).keep_prefixes
  "rule" "the server's keys and values are lost with the memory that it gives back while the models train"
  "fix" "set rollout.free_cache_engine: false, where its cache fits beside the training, or keep_prefixes: false") -}}
{{- end -}}
{{- if and (eq (toString ($v.rollout).schedule) "carry") ($v.rollout).keep_prefixes (not ($v.rollout).free_cache_engine) (eq (toString ($v.rollout).name) "cpu") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.keep_prefixes" "value" ($v.rollout).keep_prefixes
  "rule" "the rollout server `cpu` has no prefix cache"
  "fix" "remove the key, or set rollout.name: vllm") -}}
{{- end -}}
{{- if and (eq (toString ($v.rollout).schedule) "carry") ($v.rollout).keep_prefixes (not ($v.rollout).free_cache_engine) (has (toString "enable_prefix_caching") (keys ($v.rollout).engine_kwargs | sortAlpha)) (not (index ($v.rollout).engine_kwargs "enable_prefix_caching")) -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.keep_prefixes" "value" ($v.rollout).keep_prefixes
  "rule" "the keys and values lie in the server's prefix cache, which rollout.engine_kwargs.enable_prefix_caching: false switches off"
  "fix" "remove one of the two") -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "eval" "passrate") -}}
{{- if and ($v.rollout).keep_prefixes (ne (toString ($v.rollout).schedule) "carry") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.keep_prefixes" "value" ($v.rollout).keep_prefixes
  "rule" "it belongs to rollout.schedule carry; no response of strict goes on over an update"
  "fix" "remove the key, or set rollout.schedule: carry") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" ($v.rollout).in_flight)) (ne (toString ($v.rollout).schedule) "carry") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.in_flight" "value" ($v.rollout).in_flight
  "rule" "it belongs to rollout.schedule carry; strict generates a step's answers at once, by the newest weights"
  "fix" "remove the key, or set rollout.schedule: carry") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" ($v.rollout).max_age)) (ne (toString ($v.rollout).schedule) "carry") -}}
{{- include "opd.refuse" (dict "under" $v.under "key" "rollout.max_age" "value" ($v.rollout).max_age
  "rule" "it belongs to rollout.schedule carry; strict generates a step's answers at once, by the newest weights"
  "fix" "remove the key, or set rollout.schedule: carry") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $v := include "opd.whole" . | fromJson -}}
{{- if and (not (kindIs "invalid" ($v.store).url)) (regexMatch "(?i)://|^[a-z][a-z0-9+.-]*:/|^(s3|s3a|gs|gcs|az|abfs|file)(:|//)" (toString ($v.store).url)) (not (regexMatch "^((s3|s3a|gs|gcs|az|abfs)://[^/\\s]|file://.)" (toString ($v.store).url))) -}}
{{- include "opd.refuse" (dict "key" "store.url" "value" ($v.store).url
  "rule" "a store is PROTOCOL://BUCKET/PREFIX with one of s3, s3a, gs, gcs, az, abfs in lower case, file://FOLDER, or a folder's path that does not look like a URL"
  "fix" "write s3://BUCKET/PREFIX (an S3 server other than AWS's goes into store.endpoint), or a folder's path") -}}
{{- end -}}
{{- if not (($v.cluster).image).ref -}}
{{- include "opd.refuse" (dict "key" "cluster.image.ref" "value" (($v.cluster).image).ref
  "rule" "the image is required and has no default"
  "fix" "run `images/build.sh trainer --push REGISTRY`: it prints the reference to use, with its digest") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" (($v.cluster).image).ref)) (not (($v.cluster).image).local) (not (regexMatch "@sha256:[0-9a-f]{64}$" (toString (($v.cluster).image).ref))) -}}
{{- include "opd.refuse" (dict "key" "cluster.image.ref" "value" (($v.cluster).image).ref
  "rule" "an image is named by its digest, so that every pod and every attempt runs the same one"
  "fix" "use the reference that `images/build.sh trainer --push REGISTRY` prints, or cluster.image.local: true for an image loaded onto the nodes") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" (($v.cluster).submitter).image)) (not (($v.cluster).image).local) (not (regexMatch "@sha256:[0-9a-f]{64}$" (toString (($v.cluster).submitter).image))) -}}
{{- include "opd.refuse" (dict "key" "cluster.submitter.image" "value" (($v.cluster).submitter).image
  "rule" "an image is named by its digest, so that every pod and every attempt runs the same one"
  "fix" "use the reference that `images/build.sh trainer --push REGISTRY` prints, or cluster.image.local: true for an image loaded onto the nodes") -}}
{{- end -}}
{{- if not (and (le (float64 ((($v.cluster).cleanUp).succeeded).workersSeconds) (float64 ((($v.cluster).cleanUp).succeeded).clusterSeconds)) (le (float64 ((($v.cluster).cleanUp).succeeded).clusterSeconds) (float64 ((($v.cluster).cleanUp).succeeded).selfSeconds))) -}}
{{- include "opd.refuse" (dict "key" "cluster.cleanUp.succeeded" "value" (($v.cluster).cleanUp).succeeded
  "rule" "KubeRay demands workersSeconds <= clusterSeconds <= selfSeconds"
  "fix" "let each stage last at least as long as the one before") -}}
{{- end -}}
{{- if not (and (le (float64 ((($v.cluster).cleanUp).failed).workersSeconds) (float64 ((($v.cluster).cleanUp).failed).clusterSeconds)) (le (float64 ((($v.cluster).cleanUp).failed).clusterSeconds) (float64 ((($v.cluster).cleanUp).failed).selfSeconds))) -}}
{{- include "opd.refuse" (dict "key" "cluster.cleanUp.failed" "value" (($v.cluster).cleanUp).failed
  "rule" "KubeRay demands workersSeconds <= clusterSeconds <= selfSeconds"
  "fix" "let each stage last at least as long as the one before") -}}
{{- end -}}
{{- if ne (kindIs "invalid" (($v.cluster).deadlines).activeSeconds) (kindIs "invalid" (($v.cluster).deadlines).preRunningSeconds) -}}
{{- include "opd.refuse" (dict "key" "cluster.deadlines" "value" ($v.cluster).deadlines
  "rule" "the trainer finds the time to save from both deadlines: give both or none"
  "fix" "set activeSeconds and preRunningSeconds") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" (($v.cluster).deadlines).activeSeconds)) (not (kindIs "invalid" (($v.cluster).deadlines).preRunningSeconds)) (le (float64 (($v.cluster).deadlines).activeSeconds) (float64 (addf (($v.cluster).deadlines).preRunningSeconds (($v.cluster).stop).saveSeconds))) -}}
{{- include "opd.refuse" (dict "key" "cluster.deadlines.activeSeconds" "value" (($v.cluster).deadlines).activeSeconds
  "rule" (printf "it counts from the start, so it must exceed deadlines.preRunningSeconds + stop.saveSeconds = %s, or no time is left to train" (include "opd.text" (addf (($v.cluster).deadlines).preRunningSeconds (($v.cluster).stop).saveSeconds)))
  "fix" (printf "use more than %s" (include "opd.text" (addf (($v.cluster).deadlines).preRunningSeconds (($v.cluster).stop).saveSeconds)))) -}}
{{- end -}}
{{- if and (eq (toString (($v.cluster).queue).manager) "kueue") (ne (toString ($v.cluster).lifecycle) "suspendable") -}}
{{- include "opd.refuse" (dict "key" "cluster.lifecycle" "value" ($v.cluster).lifecycle
  "rule" "Kueue suspends runs, which KubeRay refuses for a RayJob with deletion rules"
  "fix" "set cluster.lifecycle: suspendable") -}}
{{- end -}}
{{- if and (eq (toString (($v.cluster).queue).manager) "volcano") (ne (toString ($v.cluster).submissionMode) "K8sJobMode") -}}
{{- include "opd.refuse" (dict "key" "cluster.submissionMode" "value" ($v.cluster).submissionMode
  "rule" "KubeRay writes Volcano's gang metadata in K8sJobMode only"
  "fix" "set cluster.submissionMode: K8sJobMode") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" (($v.cluster).serviceAccount).name)) (($v.cluster).serviceAccount).annotations -}}
{{- include "opd.refuse" (dict "key" "cluster.serviceAccount.annotations" "value" (($v.cluster).serviceAccount).annotations
  "rule" (printf "they are for the run's own account; %s is another's" (include "opd.text" (($v.cluster).serviceAccount).name))
  "fix" "annotate that account itself, or remove cluster.serviceAccount.name") -}}
{{- end -}}
{{- if and (not (($v.cluster).networkPolicy).enabled) (not (($v.cluster).networkPolicy).acceptOpenNetwork) -}}
{{- include "opd.refuse" (dict "key" "cluster.networkPolicy.enabled" "value" (($v.cluster).networkPolicy).enabled
  "rule" "Ray's token does not guard the ports on which verl, TransferQueue and torch exchange pickled objects: without a policy every pod that reaches them runs code in the run"
  "fix" "leave it true; or, where something else keeps other pods away, set cluster.networkPolicy.acceptOpenNetwork: true") -}}
{{- end -}}
{{- if and (not (($v.cluster).auth).token) (not (($v.cluster).networkPolicy).enabled) -}}
{{- include "opd.refuse" (dict "key" "cluster.auth.token" "value" (($v.cluster).auth).token
  "rule" "Ray runs any code that reaches it: without token and network policy, every pod of the cluster could"
  "fix" "leave cluster.auth.token or cluster.networkPolicy.enabled true") -}}
{{- end -}}
{{- range $index, $item := ($v.cluster).extraEnv -}}
{{- if eq (kindIs "invalid" ($item).value) (kindIs "invalid" ($item).valueFrom) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.extraEnv.%s" (include "opd.text" $index)) "value" ($item).name
  "rule" "a variable has either a value or a valueFrom"
  "fix" "keep one of the two") -}}
{{- end -}}
{{- end -}}
{{- if and (($v.cluster).checkpoints).ephemeral (not (kindIs "invalid" (($v.cluster).checkpoints).claim)) -}}
{{- include "opd.refuse" (dict "key" "cluster.checkpoints.claim" "value" (($v.cluster).checkpoints).claim
  "rule" "an ephemeral run has no claim"
  "fix" "remove claim, or ephemeral") -}}
{{- end -}}
{{- if and (($v.cluster).checkpoints).ephemeral (or (kindIs "invalid" ($v.store).url) (not (contains "://" (toString ($v.store).url))) (hasPrefix "file://" (toString ($v.store).url))) -}}
{{- include "opd.refuse" (dict "key" "store.url" "value" ($v.store).url
  "rule" "without a claim only an object store keeps results"
  "fix" "set store.url to s3://..., or cluster.checkpoints.ephemeral: false") -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- if and (not (($v.cluster).checkpoints).ephemeral) (kindIs "invalid" (($v.cluster).checkpoints).claim) (eq (toString (($v.cluster).checkpoints).accessMode) "ReadWriteOnce") (gt (float64 (($v.pods).worker).count) 1.0) -}}
{{- include "opd.refuse" (dict "key" "cluster.checkpoints.accessMode" "value" (($v.cluster).checkpoints).accessMode
  "rule" (printf "all Ray pods mount the volume, ReadWriteOnce binds them to one node, and trainer.nnodes is %s" (include "opd.text" (($v.pods).worker).count))
  "fix" "use ReadWriteMany with a StorageClass that has it, or cluster.checkpoints.ephemeral: true") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" (($v.cluster).toolDatabase).claim)) (not (kindIs "invalid" (($v.cluster).toolDatabase).url)) -}}
{{- include "opd.refuse" (dict "key" "cluster.toolDatabase" "value" ($v.cluster).toolDatabase
  "rule" "the tool database comes from one place"
  "fix" "keep claim or url") -}}
{{- end -}}
{{- if ne (kindIs "invalid" (($v.cluster).toolDatabase).url) (kindIs "invalid" (($v.cluster).toolDatabase).sha256) -}}
{{- include "opd.refuse" (dict "key" "cluster.toolDatabase.sha256" "value" (($v.cluster).toolDatabase).sha256
  "rule" "a fetched database is verified: url and sha256 belong together"
  "fix" "give both") -}}
{{- end -}}
{{- range $index, $item := ($v.pods).databases -}}
{{- if and (or (not (kindIs "invalid" (($v.cluster).toolDatabase).claim)) (not (kindIs "invalid" (($v.cluster).toolDatabase).url))) (not (hasPrefix "/" (toString $item))) -}}
{{- include "opd.refuse" (dict "key" "agent.database_dir" "value" $item
  "rule" "the tool database is mounted there, so it is an absolute path"
  "fix" "use /databases/NAME") -}}
{{- end -}}
{{- end -}}
{{- if and (eq (float64 (len ($v.pods).databases)) 0.0) (or (not (kindIs "invalid" (($v.cluster).toolDatabase).claim)) (not (kindIs "invalid" (($v.cluster).toolDatabase).url))) -}}
{{- include "opd.refuse" (dict "key" "cluster.toolDatabase" "value" (ternary (($v.cluster).toolDatabase).url (($v.cluster).toolDatabase).claim (kindIs "invalid" (($v.cluster).toolDatabase).claim))
  "rule" "no tool uses it: the spec has no `agent`"
  "fix" "remove it, or add agent.database_dir") -}}
{{- end -}}
{{- end -}}
{{- range $index, $item := list "app.kubernetes.io/name" "app.kubernetes.io/created-by" -}}
{{- if or (not (kindIs "invalid" (index (($v.cluster).head).labels $item))) (not (kindIs "invalid" (index ($v.cluster).labels $item))) -}}
{{- include "opd.refuse" (dict "key" "cluster.head.labels" "value" $item
  "rule" "KubeRay's head service finds its pod by this label"
  "fix" "use another label") -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- range $index, $item := list "app.kubernetes.io/name" "app.kubernetes.io/created-by" -}}
{{- if or (not (kindIs "invalid" (index (($v.cluster).worker).labels $item))) (not (kindIs "invalid" (index ($v.cluster).labels $item))) -}}
{{- include "opd.refuse" (dict "key" "cluster.worker.labels" "value" $item
  "rule" "KubeRay's head service finds its pod by this label"
  "fix" "use another label") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $index, $item := list "app.kubernetes.io/name" "app.kubernetes.io/created-by" -}}
{{- if or (not (kindIs "invalid" (index (($v.cluster).submitter).labels $item))) (not (kindIs "invalid" (index ($v.cluster).labels $item))) -}}
{{- include "opd.refuse" (dict "key" "cluster.submitter.labels" "value" $item
  "rule" "KubeRay's head service finds its pod by this label"
  "fix" "use another label") -}}
{{- end -}}
{{- end -}}
{{- if gt (float64 (($v.cluster).head).objectStoreGib) (float64 (($v.cluster).head).shmGib) -}}
{{- include "opd.refuse" (dict "key" "cluster.head.objectStoreGib" "value" (($v.cluster).head).objectStoreGib
  "rule" (printf "Ray's object store lies in /dev/shm, which has %s GiB" (include "opd.text" (($v.cluster).head).shmGib))
  "fix" "raise cluster.head.shmGib, or lower objectStoreGib") -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- if gt (float64 (($v.cluster).worker).objectStoreGib) (float64 (($v.cluster).worker).shmGib) -}}
{{- include "opd.refuse" (dict "key" "cluster.worker.objectStoreGib" "value" (($v.cluster).worker).objectStoreGib
  "rule" (printf "Ray's object store lies in /dev/shm, which has %s GiB" (include "opd.text" (($v.cluster).worker).shmGib))
  "fix" "raise cluster.worker.shmGib, or lower objectStoreGib") -}}
{{- end -}}
{{- if not (kindIs "invalid" (index (($v.cluster).worker).requests (($v.cluster).gpu).resource)) -}}
{{- include "opd.refuse" (dict "key" "cluster.worker.requests" "value" (($v.cluster).gpu).resource
  "rule" "the number of GPUs is said once, in trainer.gpus_per_node"
  "fix" "remove it here") -}}
{{- end -}}
{{- if not (kindIs "invalid" (index (($v.cluster).worker).limits (($v.cluster).gpu).resource)) -}}
{{- include "opd.refuse" (dict "key" "cluster.worker.limits" "value" (($v.cluster).gpu).resource
  "rule" "the number of GPUs is said once, in trainer.gpus_per_node"
  "fix" "remove it here") -}}
{{- end -}}
{{- if and (($v.cluster).rdma).ipcLock (not (($v.cluster).rdma).enabled) -}}
{{- include "opd.refuse" (dict "key" "cluster.rdma.ipcLock" "value" (($v.cluster).rdma).ipcLock
  "rule" "the capability is for RDMA only"
  "fix" "set cluster.rdma.enabled: true, or remove ipcLock") -}}
{{- end -}}
{{- end -}}
{{- range $index, $item := keys (($v.pods).head).requests | sortAlpha -}}
{{- if and (not (kindIs "invalid" (index (($v.pods).head).limits $item))) (gt (float64 (include "opd.quantity" (index (($v.pods).head).requests $item))) (float64 (include "opd.quantity" (index (($v.pods).head).limits $item)))) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.head.requests.%s" (include "opd.text" $item)) "value" (index (($v.pods).head).requests $item)
  "rule" (printf "a request is at most its limit, which is %s" (include "opd.text" (index (($v.pods).head).limits $item)))
  "fix" (printf "lower it, or raise cluster.head.limits.%s" (include "opd.text" $item))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- range $index, $item := keys (($v.pods).worker).requests | sortAlpha -}}
{{- if and (not (kindIs "invalid" (index (($v.pods).worker).limits $item))) (gt (float64 (include "opd.quantity" (index (($v.pods).worker).requests $item))) (float64 (include "opd.quantity" (index (($v.pods).worker).limits $item)))) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.worker.requests.%s" (include "opd.text" $item)) "value" (index (($v.pods).worker).requests $item)
  "rule" (printf "a request is at most its limit, which is %s" (include "opd.text" (index (($v.pods).worker).limits $item)))
  "fix" (printf "lower it, or raise cluster.worker.limits.%s" (include "opd.text" $item))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $index, $item := keys (($v.pods).submitter).requests | sortAlpha -}}
{{- if and (not (kindIs "invalid" (index (($v.pods).submitter).limits $item))) (gt (float64 (include "opd.quantity" (index (($v.pods).submitter).requests $item))) (float64 (include "opd.quantity" (index (($v.pods).submitter).limits $item)))) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.submitter.requests.%s" (include "opd.text" $item)) "value" (index (($v.pods).submitter).requests $item)
  "rule" (printf "a request is at most its limit, which is %s" (include "opd.text" (index (($v.pods).submitter).limits $item)))
  "fix" (printf "lower it, or raise cluster.submitter.limits.%s" (include "opd.text" $item))) -}}
{{- end -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- if and (($v.pods).worker).onGpu (lt (float64 (ceil (include "opd.quantity" (ternary ((($v.pods).worker).requests).cpu ((($v.pods).worker).limits).cpu (kindIs "invalid" ((($v.pods).worker).limits).cpu))))) (float64 (($v.pods).worker).cpus)) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.worker.%s.cpu" (include "opd.text" (ternary "requests" "limits" (kindIs "invalid" ((($v.pods).worker).limits).cpu)))) "value" (ternary ((($v.pods).worker).requests).cpu ((($v.pods).worker).limits).cpu (kindIs "invalid" ((($v.pods).worker).limits).cpu))
  "rule" (printf "Ray places a run by CPUs, and a node of this one needs %s (%s): with fewer it would hold its GPUs and wait for ever" (include "opd.text" (($v.pods).worker).cpus) (include "opd.text" (($v.pods).worker).byPart))
  "fix" (printf "use at least %s, or remove the key" (include "opd.text" (($v.pods).worker).cpus))) -}}
{{- end -}}
{{- end -}}
{{- if lt (float64 (include "opd.quantity" ((($v.pods).head).limits).memory)) (float64 (mulf (($v.cluster).head).shmGib 1073741824)) -}}
{{- include "opd.refuse" (dict "key" "cluster.head.shmGib" "value" (($v.cluster).head).shmGib
  "rule" (printf "/dev/shm counts against the memory limit, which is %s" (include "opd.text" ((($v.pods).head).limits).memory))
  "fix" "lower it, or raise cluster.head.limits.memory") -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- if lt (float64 (include "opd.quantity" ((($v.pods).worker).limits).memory)) (float64 (mulf (($v.cluster).worker).shmGib 1073741824)) -}}
{{- include "opd.refuse" (dict "key" "cluster.worker.shmGib" "value" (($v.cluster).worker).shmGib
  "rule" (printf "/dev/shm counts against the memory limit, which is %s" (include "opd.text" ((($v.pods).worker).limits).memory))
  "fix" "lower it, or raise cluster.worker.limits.memory") -}}
{{- end -}}
{{- end -}}
{{- if lt (float64 (include "opd.quantity" ((($v.pods).head).limits).memory)) (float64 (mulf (ceil (addf (($v.pods).head).leastGib (($v.cluster).head).objectStoreGib)) 1073741824)) -}}
{{- include "opd.refuse" (dict "key" "cluster.head.limits.memory" "value" ((($v.pods).head).limits).memory
  "rule" (printf "the processes of one pod and Ray's object store take %s GiB before a model is loaded" (include "opd.text" (ceil (addf (($v.pods).head).leastGib (($v.cluster).head).objectStoreGib))))
  "fix" (printf "use at least %sGi, or remove the key" (include "opd.text" (ceil (addf (($v.pods).head).leastGib (($v.cluster).head).objectStoreGib))))) -}}
{{- end -}}
{{- if has $v.kind (list "grpo" "opd" "opd-agent" "sft" "eval" "passrate") -}}
{{- if lt (float64 (include "opd.quantity" ((($v.pods).worker).limits).memory)) (float64 (mulf (ceil (addf (($v.pods).worker).leastGib (($v.cluster).worker).objectStoreGib)) 1073741824)) -}}
{{- include "opd.refuse" (dict "key" "cluster.worker.limits.memory" "value" ((($v.pods).worker).limits).memory
  "rule" (printf "the processes of one pod and Ray's object store take %s GiB before a model is loaded" (include "opd.text" (ceil (addf (($v.pods).worker).leastGib (($v.cluster).worker).objectStoreGib))))
  "fix" (printf "use at least %sGi, or remove the key" (include "opd.text" (ceil (addf (($v.pods).worker).leastGib (($v.cluster).worker).objectStoreGib))))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
