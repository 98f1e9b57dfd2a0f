{{- /* Names, labels and sizes that several objects share. */ -}}

{{- /* The run's name is the release's. Below an umbrella chart the dependency's name or alias makes it unique (row a1). */ -}}
{{- define "opd.run" -}}
{{ .Release.Name }}{{ if not .Chart.IsRoot }}-{{ .Chart.Name }}{{ end }}
{{- end -}}

{{- /* (list $ suffix component): metadata of an object of the run. */ -}}
{{- define "opd.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "opd.run" $root }}{{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "opd.labels" $root | nindent 2 }}
  {{- with index . 2 }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
{{- end -}}

{{- define "opd.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" .Values.kind
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Values.kind .Chart.Version)
-}}
{{- merge (include "opd.runLabels" . | fromYaml) $own .Values.cluster.labels | toYaml -}}
{{- end -}}

{{- /* Labels of pods too. KubeRay's head service selects by app.kubernetes.io/name and created-by: pods have neither. */ -}}
{{- define "opd.runLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/part-of: opd
opd/run-id: {{ include "opd.run" . | quote }}
opd/experiment: {{ .Values.name | default (include "opd.run" .) | quote }}
opd/kind: {{ .Values.kind | quote }}
{{- end -}}

{{- /* (list $ "head" group): labels of a pod; KubeRay hands none of the RayJob's on. */ -}}
{{- define "opd.podLabels" -}}
{{- $root := index . 0 -}}
{{- $own := set (include "opd.runLabels" $root | fromYaml) "app.kubernetes.io/component" (index . 1) -}}
{{- merge $own (index . 2).labels $root.Values.cluster.labels | toYaml -}}
{{- end -}}

{{- /* (list $ "head" "worker"): selector of the run's pods. */ -}}
{{- define "opd.selector" -}}
matchLabels:
  opd/run-id: {{ include "opd.run" (first .) | quote }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: {{ rest . | toJson }}}
{{- end -}}

{{- /* The experiment as the trainer reads it: the values without the charts' part and without nulls, under the run's name.
     As JSON, because YAML changes 1e-6, 1.0 and 1:30 on the way. */ -}}
{{- define "opd.experiment" -}}
{{- $tree := set (omit .Values "cluster" "global" "enabled") "name" (include "opd.run" .) -}}
{{- include "opd.withoutNulls" $tree | fromJson | toPrettyJson -}}
{{- end -}}

{{- /* A null unsets what another values file said (row b10). */ -}}
{{- define "opd.withoutNulls" -}}
{{- $out := dict -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}{{- $value = include "opd.withoutNulls" $value | fromJson -}}{{- end -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $out $key $value -}}{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- /* What the run, or a pipeline's largest stage, is: {workers, ranks, cuda, converts} as JSON. */ -}}
{{- define "opd.sizes" -}}
{{- $runs := list -}}
{{- range $name, $stage := .Values.stages -}}{{- if not $stage.skip -}}{{- $runs = append $runs $stage -}}{{- end -}}{{- end -}}
{{- $out := dict "workers" 0 "ranks" 0 "cuda" false -}}
{{- $_ := set $out "converts" (or (eq .Values.kind "convert") (contains "${stages." (toJson $runs))) -}}
{{- range eq .Values.kind "pipeline" | ternary $runs (list .Values) -}}
{{- if eq .kind "convert" -}}{{- $_ := set $out "converts" true -}}{{- else -}}
{{- $trainer := .trainer | default dict -}}
{{- $cuda := ne .device "cpu" -}}
{{- if and $cuda (not $trainer.gpus_per_node) -}}
{{- include "opd.fail" (list "trainer.gpus_per_node" "it is missing: a pod asks for so many GPUs before any program can count them" "set it, for example trainer: {gpus_per_node: 8}") -}}
{{- end -}}
{{- $_ := set $out "workers" (max $out.workers ($trainer.nnodes | default 1)) -}}
{{- $_ := set $out "ranks" (max $out.ranks ($trainer.gpus_per_node | default 1)) -}}
{{- $_ := set $out "cuda" (or $out.cuda $cuda) -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- /* The servers of a teacher, {gpus, replicas, args} as JSON; {} where the experiment has no teacher.serve. */ -}}
{{- define "opd.servers" -}}
{{- $serve := (kindIs "map" .Values.teacher | ternary .Values.teacher dict).serve -}}
{{- if kindIs "map" $serve -}}
{{- dict "gpus" ($serve.gpus | default 1) "replicas" ($serve.replicas | default 1) "args" ($serve.args | default list) | toJson -}}
{{- else -}}{}{{- end -}}
{{- end -}}

{{- /* What pods ask for where `requests` and `limits` do not say it. Ray places by CPUs: 3 a rank.
     Memory has room for weights, moments and a copy of each that are off the device; /dev/shm is added. */ -}}
{{- define "opd.numbers" -}}
cuda:    {cpu: 0, gib: 18, cpuOfRank: 3, gibOfRank: 34}
cpu:     {cpu: 0, gib: 2,  cpuOfRank: 3, gibOfRank: 2}
head:    {cpu: 2, gib: 14, cpuOfRank: 0, gibOfRank: 0}
convert: {cpu: 4, gib: 62, cpuOfRank: 0, gibOfRank: 0}
{{- end -}}

{{- /* (list $ "worker"): the values of a group of pods, with requests, limits and the selector of the GPU's type filled in. The
     group's own selector of that label wins: servers may have GPUs of another type. */ -}}
{{- define "opd.group" -}}
{{- $cluster := (index . 0).Values.cluster -}}{{- $role := index . 1 -}}
{{- $sizes := include "opd.sizes" (index . 0) | fromJson -}}
{{- $group := merge (deepCopy (index $cluster $role)) (pick $cluster.worker "shmGib") -}}
{{- $serves := eq $role "teacher" -}}
{{- $ranks := $serves | ternary (include "opd.servers" (index . 0) | fromJson).gpus $sizes.ranks -}}
{{- $onGpu := or $serves (and (eq $role "worker") $sizes.cuda) -}}
{{- $row := eq $role "head" | ternary ($sizes.converts | ternary "convert" "head") ($onGpu | ternary "cuda" "cpu") -}}
{{- $own := index (include "opd.numbers" . | fromYaml) $row -}}
{{- $cpus := add $own.cpu (mul $own.cpuOfRank $ranks) -}}
{{- $memory := printf "%dGi" (addf $own.gib (mulf $own.gibOfRank $ranks) $group.shmGib | ceil | int64) -}}
{{- $requests := merge (deepCopy $group.requests) (dict "cpu" ($group.limits.cpu | default $cpus) "memory" ($group.limits.memory | default $memory)) -}}
{{- $limits := merge (deepCopy $group.limits) (dict "memory" $requests.memory) -}}
{{- $devices := dict -}}
{{- if $onGpu -}}
{{- $_ := set $devices $cluster.gpu.resource (int64 $ranks) -}}
{{- if and $cluster.rdma.enabled (not $serves) -}}{{- $_ := set $devices $cluster.rdma.resource (int64 $cluster.rdma.count) -}}{{- end -}}
{{- with $cluster.gpu.type -}}{{- $_ := set $group "nodeSelector" (merge $group.nodeSelector (dict $cluster.gpu.typeLabel .)) -}}{{- end -}}
{{- end -}}
{{- $_ := set $group "requests" (merge (deepCopy $devices) $requests) -}}
{{- $_ := set $group "limits" (merge (deepCopy $devices) $limits) -}}
{{- merge (dict "cpus" $cpus "ranks" $ranks "onGpu" $onGpu) $group | toJson -}}
{{- end -}}

{{- define "opd.claim" -}}
{{ .Values.cluster.checkpoints.claim | default (printf "%s-checkpoints" (include "opd.run" .)) }}
{{- end -}}
