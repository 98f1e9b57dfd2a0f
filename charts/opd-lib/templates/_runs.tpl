{{- /* The runs of a release: of a pipeline its stages, else the one. Where a chart asks for sizes it asks all of them, and takes the
     greatest: they run one after another in one Ray cluster. */ -}}

{{- /* Each run as templates see one, as JSON: its kind as the chart, its values without `cluster`. A stage's have the defaults that
     follow from its kind alone, as a chart's values.yaml has them, and `under`, which stands before its keys in messages. */ -}}
{{- define "opd.runs" -}}
{{- $runs := list -}}
{{- if eq .Chart.Name "pipeline" -}}
{{- $defaults := (include "opd.constants" . | fromJson).stageDefaults -}}
{{- range $name, $stage := include "opd.stages" . | fromJson -}}
{{- $values := include "opd.merged" (list (get $defaults $stage.kind) $stage) | fromJson -}}
{{- $runs = append $runs (dict "Chart" (dict "Name" $stage.kind) "Values" (set $values "under" (printf "stages.%s." $name))) -}}
{{- end -}}
{{- if include "opd.convertsBetween" . -}}
{{- $runs = append $runs (dict "Chart" (dict "Name" "convert") "Values" (dict "kind" "convert")) -}}
{{- end -}}
{{- else -}}
{{- $runs = list (dict "Chart" (dict "Name" .Chart.Name) "Values" (omit .Values "cluster")) -}}
{{- end -}}
{{- toJson $runs -}}
{{- end -}}

{{- /* The stages of a pipeline that run. */ -}}
{{- define "opd.stages" -}}
{{- $run := dict -}}
{{- range $name, $stage := .Values.stages -}}{{- if not $stage.skip -}}{{- $_ := set $run $name (omit $stage "skip") -}}{{- end -}}{{- end -}}
{{- toJson $run -}}
{{- end -}}

{{- /* Whether a stage refers to the model that another trains, which is converted before. One that refers to a skipped stage counts
     as well: what stands there instead may be a model that is trained, and is room for a conversion at worst. */ -}}
{{- define "opd.convertsBetween" -}}
{{- range $name, $stage := include "opd.stages" . | fromJson -}}
{{- $models := list (dig "model" "path" "" $stage) (dig "teacher" "path" "" $stage) -}}
{{- range $stage.teachers -}}{{- $models = append $models (.path | default "") -}}{{- end -}}
{{- if or (regexMatch "\\$\\{stages\\.[^}]*\\.checkpoint}" (join " " $models)) (regexMatch "\\$\\{stages\\.[^}]*\\.model}" (toJson $stage)) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Pods that run Ray beside the head exist where a run is no conversion. */ -}}
{{- define "opd.hasWorkers" -}}
{{- range include "opd.runs" . | fromJsonArray }}{{ if ne .Chart.Name "convert" }}true{{ end }}{{ end -}}
{{- end -}}

{{- define "opd.rayRoles" -}}
{{- if include "opd.hasWorkers" . }}["head", "worker"]{{ else }}["head"]{{ end -}}
{{- end -}}

{{- /* The workers as JSON: how many, ranks on each, and whether these have GPUs. */ -}}
{{- define "opd.workers" -}}
{{- $count := 0 -}}{{- $ranks := 0 -}}{{- $onGpu := false -}}
{{- range include "opd.runs" . | fromJsonArray -}}
{{- if ne .Chart.Name "convert" -}}
{{- $filled := include "opd.filled" . | fromJson -}}
{{- $count = max $count (int64 $filled.trainer.nnodes) -}}
{{- $ranks = max $ranks (int64 $filled.trainer.gpus_per_node) -}}
{{- $onGpu = or $onGpu (eq $filled.device "cuda") -}}
{{- end -}}
{{- end -}}
{{- dict "count" $count "ranks" $ranks "onGpu" $onGpu | toJson -}}
{{- end -}}

{{- /* The folders from which agents read their tools' data, as JSON, sorted, each once. */ -}}
{{- define "opd.databases" -}}
{{- $found := list -}}
{{- range include "opd.runs" . | fromJsonArray -}}
{{- with .Values.agent -}}{{- $found = append $found .database_dir -}}{{- end -}}
{{- end -}}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- /* A run's values as JSON, with the defaults that follow from its device. */ -}}
{{- define "opd.filled" -}}
{{- $v := set (deepCopy .Values) "kind" .Chart.Name -}}
{{- if ne $v.kind "convert" -}}
{{- $onCpu := eq (toString $v.device) "cpu" -}}
{{- if kindIs "invalid" ($v.trainer).gpus_per_node -}}{{- $_ := set $v.trainer "gpus_per_node" (ternary 1 8 $onCpu) -}}{{- end -}}
{{- if ne $v.kind "sft" -}}
{{- if kindIs "invalid" ($v.rollout).num_agent_workers -}}{{- $_ := set $v.rollout "num_agent_workers" (ternary 0 8 $onCpu) -}}{{- end -}}
{{- if kindIs "invalid" ($v.reward).num_workers -}}{{- $_ := set $v.reward "num_workers" (ternary 0 8 $onCpu) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $v -}}
{{- end -}}
