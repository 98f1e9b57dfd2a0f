{{- /* Owns the rules between keys of the experiment, so that a bad one never starts a cluster, whoever installs it.
     The same rules as src/opd/config/rules.py, which says why; tests/charts/test_rules_agree.py holds the two equal. */ -}}

{{- define "opd.checkSpec" -}}
{{- $data := .Values.data -}}{{- $actor := .Values.actor -}}
{{- $row := add (int64 $data.max_prompt_length) (int64 $data.max_response_length) -}}
{{- $ranks := mul (int64 .Values.trainer.nnodes) (include "opd.gpusPerNode" . | int64) -}}
{{- $groups := max 1 (div $ranks (int64 $actor.ulysses_sequence_parallel_size)) -}}
{{- $sizes := dict "row" $row "ranks" $ranks "groups" $groups -}}
{{- include "opd.checkDevice" . -}}
{{- include "opd.checkLengths" (list . $sizes) -}}
{{- include "opd.checkBatches" (list . $sizes) -}}
{{- include "opd.checkRanks" (list . $sizes) -}}
{{- include "opd.checkSequenceSharing" . -}}
{{- include "opd.checkReward" . -}}
{{- include "opd.checkOverrides" . -}}
{{- if hasKey .Values "opd" -}}
{{- include "opd.checkDistillation" (list . $sizes) -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkDevice" -}}
{{- $server := .Values.rollout.name | default .Values.device | replace "cuda" "vllm" -}}
{{- if ne (eq .Values.device "cpu") (eq $server "cpu") -}}
{{- include "opd.refuse" (dict "key" "rollout.name" "value" $server
  "rule" (printf "device %s has its own rollout server" .Values.device)
  "fix" "remove rollout.name, or change device") -}}
{{- end -}}
{{- $attention := .Values.model.attn_implementation | default "" -}}
{{- if and (eq .Values.device "cpu") (has $attention (list "flash_attention_2" "varlen")) -}}
{{- include "opd.refuse" (dict "key" "model.attn_implementation" "value" $attention
  "rule" "flash attention needs a CUDA device" "fix" "use sdpa") -}}
{{- end -}}
{{- if and (eq $attention "varlen") (eq (toString .Values.actor.use_remove_padding) "false") -}}
{{- include "opd.refuse" (dict "key" "model.attn_implementation" "value" $attention
  "rule" "varlen takes packed rows, and actor.use_remove_padding is false" "fix" "use sdpa, or actor.use_remove_padding: true") -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkLengths" -}}
{{- $values := (index . 0).Values -}}{{- $row := (index . 1).row -}}
{{- $sharing := int64 $values.actor.ulysses_sequence_parallel_size -}}
{{- range $key := list "ppo_max_token_len_per_gpu" "log_prob_max_token_len_per_gpu" -}}
{{- if hasKey $values.actor $key -}}
{{- if lt (mul (index $values.actor $key | int64) $sharing) (int64 $row) -}}
{{- include "opd.refuse" (dict "key" (printf "actor.%s" $key) "value" (index $values.actor $key)
  "rule" (printf "a token budget (times ulysses_sequence_parallel_size %d) must hold the longest row: max_prompt_length + max_response_length = %d" $sharing $row)
  "fix" "raise it, or remove the key") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (not $values.data.filter_overlong) (eq $values.data.truncation "left") -}}
{{- include "opd.refuse" (dict "key" "data.truncation" "value" "left"
  "rule" "left truncation would cut the system prompt and the instruction first: an overlong prompt is dropped and counted, or is an error"
  "fix" "set data.filter_overlong: true, or data.truncation: error") -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkBatches" -}}
{{- $values := (index . 0).Values -}}{{- $groups := (index . 1).groups -}}
{{- $actor := $values.actor -}}
{{- $batch := int64 $values.data.train_batch_size -}}{{- $mini := int64 $actor.ppo_mini_batch_size -}}
{{- if mod $batch $mini -}}
{{- include "opd.refuse" (dict "key" "actor.ppo_mini_batch_size" "value" $mini
  "rule" (printf "the mini-batch must divide data.train_batch_size (%d)" $batch)
  "fix" (printf "use a divisor, or a train_batch_size that is a multiple of %d" $mini)) -}}
{{- end -}}
{{- $dynamic := false -}}
{{- if hasKey $actor "use_dynamic_bsz" -}}
{{- $dynamic = $actor.use_dynamic_bsz -}}
{{- else if hasKey $values "recipe" -}}
{{- $dynamic = index (include "opd.constants" (index . 0) | fromJson).useDynamicBsz $values.recipe -}}
{{- end -}}
{{- if not (or $dynamic (eq $values.kind "eval")) -}}
{{- $micro := int64 $actor.ppo_micro_batch_size_per_gpu -}}
{{- $logProbMicro := $micro -}}
{{- if hasKey $actor "log_prob_micro_batch_size_per_gpu" -}}{{- $logProbMicro = int64 $actor.log_prob_micro_batch_size_per_gpu -}}{{- end -}}
{{- range $split := list (list "ppo" $mini $micro) (list "log_prob" $batch $logProbMicro) -}}
{{- $rows := mul (index $split 1) (int64 $values.rollout.num_samples) -}}
{{- if and (not (mod $rows $groups)) (mod (div $rows $groups) (index $split 2)) -}}
{{- include "opd.refuse" (dict "key" (printf "actor.%s_micro_batch_size_per_gpu" (index $split 0)) "value" (index $split 2)
  "rule" (printf "with use_dynamic_bsz off the micro-batch must divide a rank's rows (%d rows / %d data-parallel ranks = %d)" $rows $groups (div $rows $groups))
  "fix" (printf "use a divisor of %d, or use_dynamic_bsz: true" (div $rows $groups))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkRanks" -}}
{{- $values := (index . 0).Values -}}{{- $sizes := index . 1 -}}
{{- $sharing := int64 $values.actor.ulysses_sequence_parallel_size -}}
{{- $shares := dict "rollout.tensor_parallel_size" $values.rollout.tensor_parallel_size "actor.ulysses_sequence_parallel_size" $sharing -}}
{{- if hasKey $values "opd" -}}
{{- $_ := set $shares "opd.vocab_parallel_size" $values.opd.vocab_parallel_size -}}
{{- else -}}
{{- range $key := list "param_offload" "optimizer_offload" -}}
{{- if eq (toString (get $values.actor $key)) "auto" -}}
{{- include "opd.refuse" (dict "key" (printf "actor.%s" $key) "value" "auto"
  "rule" "only distillation (kind opd, opd-agent) makes the residency plan that `auto` asks" "fix" "use true or false") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $size := $shares -}}
{{- if mod $sizes.ranks (int64 $size) -}}
{{- include "opd.refuse" (dict "key" $key "value" $size
  "rule" (printf "it must divide the number of ranks (nnodes x gpus_per_node = %d)" $sizes.ranks)
  "fix" "use a divisor") -}}
{{- end -}}
{{- end -}}
{{- $rows := mul (int64 $values.actor.ppo_mini_batch_size) (int64 $values.rollout.num_samples) -}}
{{- if and (ne $values.kind "eval") (mod $rows $sizes.groups) -}}
{{- include "opd.refuse" (dict "key" "actor.ppo_mini_batch_size" "value" $values.actor.ppo_mini_batch_size
  "rule" (printf "a mini-batch's rows (x rollout.num_samples = %d) must divide evenly over the %d data-parallel ranks" $rows $sizes.groups)
  "fix" (printf "use a multiple of %d" $sizes.groups)) -}}
{{- end -}}
{{- end -}}

{{- /* The spec's default attention exchanges heads for tokens: varlen or sdpa. */ -}}
{{- define "opd.checkSequenceSharing" -}}
{{- $actor := .Values.actor -}}
{{- if gt (int64 $actor.ulysses_sequence_parallel_size) 1 -}}
{{- $packed := eq .Values.device "cuda" -}}
{{- if hasKey $actor "use_remove_padding" -}}{{- $packed = $actor.use_remove_padding -}}{{- end -}}
{{- if not $packed -}}
{{- include "opd.refuse" (dict "key" "actor.use_remove_padding" "value" false
  "rule" "ranks that share a sequence (actor.ulysses_sequence_parallel_size) take slices of packed rows"
  "fix" "set it to true, or actor.ulysses_sequence_parallel_size: 1") -}}
{{- end -}}
{{- $exchanging := list "varlen" "sdpa" -}}
{{- $attention := .Values.model.attn_implementation | default "sdpa" -}}
{{- if not (has $attention $exchanging) -}}
{{- include "opd.refuse" (dict "key" "model.attn_implementation" "value" $attention
  "rule" (printf "ranks that share a sequence (actor.ulysses_sequence_parallel_size) must exchange heads for tokens around attention, which only %s can" (join " and " $exchanging))
  "fix" (printf "use %s, or actor.ulysses_sequence_parallel_size: 1" (join " or " $exchanging))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkReward" -}}
{{- $reward := .Values.reward -}}
{{- $isCustom := eq ($reward.function | default "") "custom" -}}
{{- if and $isCustom (not (hasKey $reward "path")) -}}
{{- include "opd.refuse" (dict "key" "reward.path" "value" ""
  "rule" "a custom reward function needs its file" "fix" "set reward.path: FILE.py") -}}
{{- end -}}
{{- if and (hasKey $reward "path") (hasKey $reward "function") (not $isCustom) -}}
{{- include "opd.refuse" (dict "key" "reward.function" "value" $reward.function
  "rule" "reward.path belongs to function custom"
  "fix" "set reward.function: custom, or remove reward.path") -}}
{{- end -}}
{{- end -}}

{{- /* Raw overrides are read by the trainer; what it refuses by name, the chart refuses too. */ -}}
{{- define "opd.checkOverrides" -}}
{{- $constants := include "opd.constants" . | fromJson -}}
{{- range $index, $text := .Values.overrides -}}
{{- $key := regexReplaceAll "^[+~]*([^=]*)(?s:=.*)?$" $text "${1}" -}}
{{- $value := regexReplaceAll "^[^=]*=?" $text "" | trimAll "'\"" | lower -}}
{{- if or (regexMatch $constants.secretInText $text) (regexMatch $constants.urlCredentials $text) -}}
{{- include "opd.refuse" (dict "key" (printf "overrides.%d" $index) "value" "<redacted>"
  "rule" "a secret is never written into an override"
  "fix" "refer to an existing Secret (cluster.secrets, cluster.envFrom)") -}}
{{- end -}}
{{- range $constants.refused -}}
{{- if and (regexMatch .pattern $key) (not (has $value .harmless)) (not (hasPrefix "~" $text)) -}}
{{- include "opd.refuse" (dict "key" (printf "overrides.%d" $index) "value" $text "rule" .rule "fix" "remove the override") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkDistillation" -}}
{{- $opd := (index . 0).Values.opd -}}{{- $values := (index . 0).Values -}}{{- $row := (index . 1).row -}}
{{- $tokens := $opd.importance.tokens -}}
{{- if and (eq $tokens.normalize "micro") (not (has $tokens.score (list "none" "random" "position"))) -}}
{{- if eq $tokens.scope "batch" -}}
{{- include "opd.refuse" (dict "key" "opd.importance.tokens.scope" "value" "batch"
  "rule" "with normalize micro the number of tokens that an update trains would depend on how it is cut"
  "fix" "use scope: rollout, or normalize: global") -}}
{{- end -}}
{{- if gt (int64 $values.actor.ulysses_sequence_parallel_size) 1 -}}
{{- include "opd.refuse" (dict "key" "opd.importance.tokens.normalize" "value" "micro"
  "rule" "a rank that shares sequences (actor.ulysses_sequence_parallel_size) does not see the whole micro-batch"
  "fix" "use normalize: global, or actor.ulysses_sequence_parallel_size: 1") -}}
{{- end -}}
{{- end -}}
{{- if hasKey $opd "max_length" -}}
{{- if lt (int64 $opd.max_length) (int64 $row) -}}
{{- include "opd.refuse" (dict "key" "opd.max_length" "value" $opd.max_length
  "rule" (printf "it must hold max_prompt_length + max_response_length = %d: a smaller value would cut rows silently" $row)
  "fix" (printf "use %d, or remove the key" $row)) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $opd "beta" -}}
{{- if ne $opd.loss_type "jsd" -}}
{{- include "opd.refuse" (dict "key" "opd.beta" "value" $opd.beta
  "rule" (printf "beta weighs the mixture of jsd; loss_type %s has none" $opd.loss_type)
  "fix" "remove opd.beta, or set opd.loss_type: jsd") -}}
{{- end -}}
{{- if or (le (float64 $opd.beta) 0.0) (ge (float64 $opd.beta) 1.0) -}}
{{- include "opd.refuse" (dict "key" "opd.beta" "value" $opd.beta
  "rule" "jsd needs 0 < beta < 1" "fix" "use 0.5, or remove the key") -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $opd "reward_beta") (eq (int64 $values.rollout.num_samples) 1) -}}
{{- include "opd.refuse" (dict "key" "opd.reward_beta" "value" $opd.reward_beta
  "rule" "reward weighting compares the samples of one prompt, and rollout.num_samples is 1"
  "fix" "set rollout.num_samples to 2 or more, or remove opd.reward_beta") -}}
{{- end -}}
{{- end -}}
