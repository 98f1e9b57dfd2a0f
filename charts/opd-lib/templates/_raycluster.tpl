{{- /* Owns the Ray cluster of a run: the head, where the driver runs, and `trainer.nnodes` equal workers. */ -}}

{{- define "opd.rayCluster" -}}
{{- $head := include "opd.rayPods" (list . "head") | fromJson -}}
rayVersion: {{ include "opd.rayVersion" . | quote }}
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
    metadata:
      labels:
        {{- include "opd.podLabels" (list . "head" $head) | nindent 8 }}
      {{- with $head.annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "opd.rayPodSpec" (list . $head) | nindent 6 }}
      containers:
        - name: ray-head
          {{- include "opd.rayContainer" (list . $head) | nindent 10 }}
          ports:
            - {name: gcs-server, containerPort: 6379}
            - {name: dashboard, containerPort: 8265}
            - {name: metrics, containerPort: 8080}
        {{- if eq .Values.cluster.submissionMode "HTTPMode" }}
        {{- include "opd.logSidecar" . | nindent 8 }}
        {{- end }}
{{- if include "opd.hasWorkers" . }}
workerGroupSpecs:
  {{- include "opd.workerGroup" . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "opd.workerGroup" -}}
{{- $cluster := .Values.cluster -}}
{{- $worker := include "opd.rayPods" (list . "worker") | fromJson -}}
{{- $gpus := include "opd.gpusPerNode" . -}}
{{- $own := dict "num-gpus" $gpus -}}
{{- $limits := dict -}}
{{- if eq .Values.device "cuda" -}}
{{- $_ := set $limits $cluster.gpu.resource ($gpus | int64) -}}
{{- with $cluster.gpu.type -}}
{{- $worker = merge (dict "nodeSelector" (merge (dict $cluster.gpu.typeLabel .) $worker.nodeSelector)) (omit $worker "nodeSelector") -}}
{{- end -}}
{{- else -}}
{{- /* No device: Ray's slots are logical, one GPU a rank and as many CPUs as it asks for, however many there are. */ -}}
{{- $_ := set $own "num-cpus" ((include "opd.needs" (list . "worker") | fromJson).cpus | int64 | toString) -}}
{{- end -}}
{{- $hasRdma := and $cluster.rdma.enabled (eq .Values.device "cuda") -}}
{{- if $hasRdma -}}
{{- $_ := set $limits $cluster.rdma.resource ($cluster.rdma.count | int64) -}}
{{- end -}}
{{- $worker = merge (dict "limits" (merge (deepCopy $limits) $worker.limits) "requests" (merge (deepCopy $limits) $worker.requests)) (omit $worker "limits" "requests") -}}
- groupName: worker
  replicas: {{ int64 .Values.trainer.nnodes }}
  minReplicas: {{ int64 .Values.trainer.nnodes }}
  maxReplicas: {{ int64 .Values.trainer.nnodes }}
  rayStartParams:
    {{- include "opd.rayStartParams" (list $worker $own) | nindent 4 }}
  template:
    metadata:
      labels:
        {{- include "opd.podLabels" (list . "worker" $worker) | nindent 8 }}
      {{- with $worker.annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "opd.rayPodSpec" (list . $worker) | nindent 6 }}
      containers:
        - name: ray-worker
          {{- include "opd.rayContainer" (list . $worker (and $hasRdma $cluster.rdma.ipcLock)) | nindent 10 }}
          ports:
            - {name: metrics, containerPort: 8080}
{{- end -}}

{{- /* (list group own): the user's parameters and the chart's; KubeRay wants strings. Sizes are in bytes. */ -}}
{{- define "opd.rayStartParams" -}}
{{- $group := index . 0 -}}
{{- $store := mulf $group.objectStoreGib 1073741824 | int64 | toString -}}
{{- merge (index . 1) (dict "object-store-memory" $store) $group.rayStartParams | toYaml -}}
{{- end -}}

{{- /* (list $ group) */ -}}
{{- define "opd.rayPodSpec" -}}
{{- $root := index . 0 -}}{{- $group := index . 1 -}}
{{- $stop := $root.Values.cluster.stop -}}
{{- include "opd.podSpec" (list $root $group) }}
terminationGracePeriodSeconds: {{ add (int64 $stop.saveSeconds) (int64 $stop.marginSeconds) }}
{{- with include "opd.initContainers" $root }}
{{ . }}
{{- end }}
volumes:
  {{- include "opd.volumes" (list $root $group) | nindent 2 }}
{{- end -}}

{{- /* (list $ group ipcLock): the container that KubeRay gives `ray start`; it must be the first of its pod. */ -}}
{{- define "opd.rayContainer" -}}
{{- $root := index . 0 -}}{{- $group := index . 1 -}}
{{- include "opd.container" $root }}
workingDir: {{ $root.Values.cluster.checkpoints.path | quote }}
{{- if and (gt (len .) 2) (index . 2) }}
{{- include "opd.containerSecurity" $root | replace "drop: [ALL]" "drop: [ALL]\n    add: [IPC_LOCK]" | nindent 0 }}
{{- else }}
{{- include "opd.containerSecurity" $root | nindent 0 }}
{{- end }}
resources:
  requests:
    {{- toYaml $group.requests | nindent 4 }}
  limits:
    {{- toYaml $group.limits | nindent 4 }}
env:
  {{- include "opd.env" $root | nindent 2 }}
{{- include "opd.envFrom" $root }}
volumeMounts:
  {{- include "opd.volumeMounts" $root | nindent 2 }}
lifecycle:
  preStop:
    exec:
      # The trainer saves, then Ray ends: bash as process 1 would ignore the SIGTERM that follows.
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
