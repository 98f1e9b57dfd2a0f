{{- /* The Ray cluster of a run, or of a pipeline's stages: the head, where the driver runs, and `trainer.nnodes` equal workers. */ -}}

{{- define "opd.rayCluster" -}}
{{- $head := include "opd.rayPods" (list . "head") | fromJson -}}
rayVersion: {{ (include "opd.constants" . | fromJson).rayVersion | quote }}
authOptions:
  mode: {{ .Values.cluster.auth.token | ternary "token" "disabled" }}
  {{- with .Values.cluster.auth.secret }}
  secretName: {{ . | quote }}
  {{- end }}
enableInTreeAutoscaling: false
headGroupSpec:
  rayStartParams:
    {{- include "opd.rayStartParams" (list $head (dict "num-cpus" "0" "dashboard-host" "0.0.0.0")) | nindent 4 }}
  template:
    {{- include "opd.rayTemplate" (list . "head" $head false) | nindent 4 }}
{{- if include "opd.hasWorkers" . }}
workerGroupSpecs:
  {{- include "opd.workerGroup" . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "opd.workerGroup" -}}
{{- $cluster := .Values.cluster -}}
{{- $worker := include "opd.rayPods" (list . "worker") | fromJson -}}
{{- $workers := include "opd.workers" . | fromJson -}}
{{- $own := dict "num-gpus" ($workers.ranks | int64 | toString) -}}
{{- $limits := dict -}}
{{- if $workers.onGpu -}}
{{- $_ := set $limits $cluster.gpu.resource ($workers.ranks | int64) -}}
{{- with $cluster.gpu.type -}}
{{- $worker = merge (dict "nodeSelector" (merge (dict $cluster.gpu.typeLabel .) $worker.nodeSelector)) (omit $worker "nodeSelector") -}}
{{- end -}}
{{- else -}}
{{- /* No device: Ray's slots are logical, one GPU a rank and as many CPUs as it asks for, however many there are. */ -}}
{{- $_ := set $own "num-cpus" ((include "opd.needs" (list . "worker") | fromJson).cpus | int64 | toString) -}}
{{- end -}}
{{- $hasRdma := and $cluster.rdma.enabled $workers.onGpu -}}
{{- if $hasRdma -}}
{{- $_ := set $limits $cluster.rdma.resource ($cluster.rdma.count | int64) -}}
{{- end -}}
{{- $worker = merge (dict "limits" (merge (deepCopy $limits) $worker.limits) "requests" (merge (deepCopy $limits) $worker.requests)) (omit $worker "limits" "requests") -}}
- groupName: worker
  replicas: {{ int64 $workers.count }}
  minReplicas: {{ int64 $workers.count }}
  maxReplicas: {{ int64 $workers.count }}
  rayStartParams:
    {{- include "opd.rayStartParams" (list $worker $own) | nindent 4 }}
  template:
    {{- include "opd.rayTemplate" (list . "worker" $worker (and $hasRdma $cluster.rdma.ipcLock)) | nindent 4 }}
{{- end -}}

{{- /* (list group own): parameters of `ray start`; KubeRay wants strings. Sizes are in bytes. */ -}}
{{- define "opd.rayStartParams" -}}
{{- $group := index . 0 -}}
{{- $store := mulf $group.objectStoreGib 1073741824 | int64 | toString -}}
{{- merge (index . 1) (dict "object-store-memory" $store) | toYaml -}}
{{- end -}}

{{- /* (list $ "head" group ipcLock) */ -}}
{{- define "opd.rayTemplate" -}}
{{- $root := index . 0 -}}{{- $role := index . 1 -}}{{- $group := index . 2 -}}
{{- $labels := include "opd.podLabels" (list $root $role $group) | fromYaml -}}
metadata:
  labels:
    {{- merge $labels (include "opd.identity" $root | fromJson).podLabels | toYaml | nindent 4 }}
  {{- with include "opd.rayAnnotations" (list $root $group) | fromYaml }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "opd.withPodSpec" (list $root $role (include "opd.rayPodSpec" .)) | nindent 2 }}
{{- end -}}

{{- /* (list $ "head" group ipcLock) */ -}}
{{- define "opd.rayPodSpec" -}}
{{- $root := index . 0 -}}{{- $role := index . 1 -}}{{- $group := index . 2 -}}
{{- $stop := $root.Values.cluster.stop -}}
{{- include "opd.podSpec" (list $root $group) }}
terminationGracePeriodSeconds: {{ add (int64 $stop.saveSeconds) (int64 $stop.marginSeconds) }}
{{- with include "opd.initContainers" $root }}
{{ . }}
{{- end }}
containers:
  - name: ray-{{ $role }}
    {{- include "opd.rayContainer" (list $root $group (index . 3) $role) | nindent 4 }}
    ports:
      {{- if eq $role "head" }}
      - {name: gcs-server, containerPort: 6379}
      - {name: dashboard, containerPort: 8265}
      {{- end }}
      - {name: metrics, containerPort: 8080}
  {{- if and (eq $role "head") (eq $root.Values.cluster.submissionMode "HTTPMode") }}
  {{- include "opd.logSidecar" $root | nindent 2 }}
  {{- end }}
volumes:
  {{- include "opd.volumes" (list $root $group) | nindent 2 }}
  {{- if include "opd.writesProgress" (list $root $role) }}
  {{- include "opd.progressVolume" $root | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* (list $ group ipcLock "head"): the container that KubeRay gives `ray start`; it must be the first of its pod. */ -}}
{{- define "opd.rayContainer" -}}
{{- $root := index . 0 -}}{{- $group := index . 1 -}}
{{- include "opd.container" $root }}
workingDir: {{ $root.Values.cluster.checkpoints.path | quote }}
{{- $security := $root.Values.cluster.podSecurity.readOnlyRootFilesystem | ternary "opd.sideContainerSecurity" "opd.containerSecurity" }}
{{ include $security $root | replace "drop: [ALL]" (index . 2 | ternary "drop: [ALL]\n    add: [IPC_LOCK]" "drop: [ALL]") | trim }}
resources:
  requests:
    {{- toYaml $group.requests | nindent 4 }}
  limits:
    {{- toYaml $group.limits | nindent 4 }}
env:
  {{- include "opd.env" (list $root (hasKey $group.limits (dig "gpu" "resource" "" $root.Values.cluster))) | nindent 2 }}
  {{- $writesProgress := include "opd.writesProgress" (list $root (index . 3)) }}
  {{- if $writesProgress }}
  {{- include "opd.progressEnv" $root | nindent 2 }}
  {{- end }}
{{- include "opd.envFrom" $root }}
volumeMounts:
  {{- include "opd.volumeMounts" $root | nindent 2 }}
  {{- if $writesProgress }}
  - name: progress-token
    mountPath: {{ include "opd.progressFolder" $root }}
    readOnly: true
  {{- end }}
{{- /* The trainer saves, then Ray ends: bash as process 1 would ignore the SIGTERM that follows. */}}
lifecycle:
  preStop:
    exec:
      command: [/bin/sh, -c, "python -m opd.pods.stop /etc/opd/exp.json; ray stop"]
{{- end -}}

{{- /* HTTPMode prints the driver's log nowhere: this container does, for `kubectl logs -c log`. */ -}}
{{- define "opd.logSidecar" -}}
- name: log
  {{- include "opd.container" . | nindent 2 }}
  {{- include "opd.sideContainerSecurity" . | nindent 2 }}
  {{- include "opd.smallResources" . | nindent 2 }}
  command: [python, -m, opd.pods.follow, /tmp/ray/session_latest/logs]
  env:
    {{- include "opd.sideEnv" (list . "/home/opd") | nindent 4 }}
  volumeMounts:
    - name: scratch
      mountPath: /tmp
      readOnly: true
{{- end -}}
