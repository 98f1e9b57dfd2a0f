{{- /* Owns the RayJob: how it is submitted, retried, limited in time and cleaned up. */ -}}

{{- define "opd.rayJob" -}}
{{- include "opd.check" . -}}
{{- $cluster := .Values.cluster -}}
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: {{ .Release.Name }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "opd.labels" . | nindent 4 }}
    {{- include "opd.queueLabels" . | nindent 4 }}
  annotations:
    opd/experiment-sha256: {{ include "opd.experiment" . | sha256sum }}
    {{- with $cluster.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  # One fixed command: KubeRay splices it into a shell, and Ray evaluates it in another. Arguments are in the file.
  entrypoint: {{ include "opd.entrypoint" . }}
  submissionMode: {{ $cluster.submissionMode }}
  backoffLimit: {{ int64 $cluster.retries.backoffLimit }}
  {{- if hasKey $cluster.deadlines "activeSeconds" }}
  activeDeadlineSeconds: {{ int64 $cluster.deadlines.activeSeconds }}
  preRunningDeadlineSeconds: {{ int64 $cluster.deadlines.preRunningSeconds }}
  {{- end }}
  {{- include "opd.deletion" . | nindent 2 }}
  {{- if eq $cluster.submissionMode "K8sJobMode" }}
  submitterConfig:
    backoffLimit: {{ int64 $cluster.retries.submitterBackoffLimit }}
  submitterPodTemplate:
    {{- include "opd.submitter" . | nindent 4 }}
  {{- end }}
  rayClusterSpec:
    {{- include "opd.rayCluster" . | nindent 4 }}
{{- end -}}

{{- define "opd.entrypoint" -}}
python -m opd.pods.start /etc/opd/exp.json
{{- end -}}

{{- /* Rules and shutdownAfterJobFinishes exclude each other. Every failure is also deployment `Failed`, and the shorter of
     two matching times would win: one set of rules for each end, and no more. */ -}}
{{- define "opd.deletion" -}}
{{- $cleanUp := .Values.cluster.cleanUp -}}
{{- if eq .Values.cluster.lifecycle "rules" -}}
deletionStrategy:
  deletionRules:
    {{- include "opd.deletionRules" (list (dict "jobStatus" "SUCCEEDED") $cleanUp.succeeded) | nindent 4 }}
    {{- include "opd.deletionRules" (list (dict "jobDeploymentStatus" "Failed") $cleanUp.failed) | nindent 4 }}
{{- else -}}
shutdownAfterJobFinishes: true
ttlSecondsAfterFinished: {{ int64 $cleanUp.suspendableSeconds }}
{{- end -}}
{{- end -}}

{{- define "opd.deletionRules" -}}
{{- $condition := index . 0 -}}{{- $ttl := index . 1 -}}
{{- range $stage := list (list "DeleteWorkers" $ttl.workersSeconds) (list "DeleteCluster" $ttl.clusterSeconds) (list "DeleteSelf" $ttl.selfSeconds) }}
- policy: {{ index $stage 0 }}
  condition:
    {{- toYaml $condition | nindent 4 }}
    ttlSeconds: {{ index $stage 1 | int64 }}
{{- end }}
{{- end -}}

{{- define "opd.queueLabels" -}}
{{- with .Values.cluster.queue -}}
{{- $isKueue := eq .manager "kueue" -}}
{{ $isKueue | ternary "kueue.x-k8s.io/queue-name" "volcano.sh/queue-name" }}: {{ .name | quote }}
{{- with .priorityClass }}
{{ $isKueue | ternary "kueue.x-k8s.io/priority-class" "ray.io/priority-class-name" }}: {{ . | quote }}
{{- end }}
{{- end -}}
{{- end -}}
