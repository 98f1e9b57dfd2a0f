{{- /* Owns the environment of Ray containers: sorted, each name once: the experiment's over the chart's own,
     and extraEnv, which may not repeat the experiment's, last and winning. */ -}}

{{- /* Ray signals every process of a job that it stops and kills what is left after a wait: SIGINT, because the launcher
     alone reacts to it and tells the trainer once; the wait is the time to save. */ -}}
{{- /* (list $ hasDevice) */ -}}
{{- define "opd.env" -}}
{{- $hasDevice := index . 1 -}}
{{- with index . 0 -}}
{{- $cluster := .Values.cluster -}}
{{- $env := dict
  "HOME" (dict "value" "/home/opd")
  "HF_HOME" (dict "value" (printf "%s/huggingface" (include "opd.cachePath" .)))
  "OPD_CACHE_DIR" (dict "value" (include "opd.cachePath" .))
  "RAY_USAGE_STATS_ENABLED" (dict "value" "0")
  "RAY_JOB_STOP_WAIT_TIME_S" (dict "value" ($cluster.stop.saveSeconds | int64 | toString))
  "RAY_JOB_STOP_SIGNAL" (dict "value" "SIGINT")
  "OPD_SAVE_SECONDS" (dict "value" ($cluster.stop.saveSeconds | int64 | toString))
  "OPD_STARTS_PER_CLUSTER" (dict "value" ($cluster.retries.startsPerCluster | int64 | toString))
  "OPD_CHART_VERSION" (dict "value" .Chart.Version)
  "OPD_IMAGE" (dict "value" $cluster.image.ref)
-}}
{{- if hasKey $cluster.deadlines "activeSeconds" -}}
{{- $_ := set $env "OPD_ACTIVE_DEADLINE_SECONDS" (dict "value" ($cluster.deadlines.activeSeconds | int64 | toString)) -}}
{{- $_ := set $env "OPD_PRE_RUNNING_DEADLINE_SECONDS" (dict "value" ($cluster.deadlines.preRunningSeconds | int64 | toString)) -}}
{{- end -}}
{{- if has "wandb" (dig "trainer" "loggers" list (omit .Values "cluster")) -}}
{{- /* One W&B run over all attempts: the run id is its id. A pipeline's stages are runs, and each sets its own. */ -}}
{{- $_ := set $env "WANDB_RUN_ID" (dict "value" .Release.Name) -}}
{{- $_ := set $env "WANDB_RESUME" (dict "value" "allow") -}}
{{- end -}}
{{- range $key, $name := dict "huggingFace" "HF_TOKEN" "wandb" "WANDB_API_KEY" "mlflow" "MLFLOW_TRACKING_TOKEN" -}}
{{- with index $cluster.secrets $key -}}
{{- $_ := set $env $name (dict "valueFrom" (dict "secretKeyRef" (dict "name" .secret "key" .key))) -}}
{{- end -}}
{{- end -}}
{{- if not $hasDevice -}}{{- $env = merge $env (include "opd.noDevice" . | fromYaml) -}}{{- end -}}
{{- $env = merge (include "opd.experimentEnv" . | fromJson) $env -}}
{{- range $cluster.extraEnv -}}{{- $env = omit $env .name -}}{{- end -}}
{{- concat (include "opd.envList" $env | fromJsonArray) $cluster.extraEnv | toYaml -}}
{{- end -}}
{{- end -}}

{{- /* (dict NAME entry ...): the list that a container takes, sorted. */ -}}
{{- define "opd.envList" -}}
{{- $list := list -}}
{{- range $name, $entry := . -}}{{- $list = append $list (set $entry "name" $name) -}}{{- end -}}
{{- $list | toJson -}}
{{- end -}}

{{- /* What the experiment says about the environment of every process: `env`, and the server of its store. */ -}}
{{- define "opd.experimentEnv" -}}
{{- $env := dict -}}
{{- range $name, $value := .Values.env -}}{{- $_ := set $env $name (dict "value" $value) -}}{{- end -}}
{{- $store := .Values.store | default dict -}}
{{- range $key, $name := (include "opd.constants" . | fromJson).storeVariables -}}
{{- if hasKey $store $key -}}{{- $_ := set $env $name (dict "value" (get $store $key)) -}}{{- end -}}
{{- end -}}
{{- $env | toJson -}}
{{- end -}}

{{- /* NVIDIA's runtime shows every GPU of the node to a container of an image that says `all`, asked for or not. */ -}}
{{- define "opd.noDevice" -}}
NVIDIA_VISIBLE_DEVICES: {value: void}
{{- end -}}

{{- /* (list $ "/home/opd"): the environment of a container beside Ray's. */ -}}
{{- define "opd.sideEnv" -}}
{{- $own := set (include "opd.noDevice" . | fromYaml) "HOME" (dict "value" (index . 1)) -}}
{{- $env := merge (include "opd.experimentEnv" (index . 0) | fromJson) $own -}}
{{- include "opd.envList" $env | fromJsonArray | toYaml -}}
{{- end -}}

{{- define "opd.envFrom" -}}
{{- $sources := .Values.cluster.envFrom -}}
{{- with .Values.cluster.secrets.store -}}
{{- $sources = prepend $sources (dict "secretRef" (dict "name" .)) -}}
{{- end -}}
{{- with $sources }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "opd.cachePath" -}}
{{- $cluster := .Values.cluster -}}
{{- if hasKey $cluster.cache "claim" -}}{{ $cluster.cache.path }}{{- else -}}{{ $cluster.checkpoints.path }}/cache{{- end -}}
{{- end -}}
