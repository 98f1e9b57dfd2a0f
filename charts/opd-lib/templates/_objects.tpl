{{- /* Owns the small objects beside the RayJob: experiment, identity, claim, metrics, test. */ -}}

{{- /* What the trainer reads: the values without the charts' part, under the release's name. As JSON, because a trip through
     YAML changes 1e-6, 1.0 and 1:30. */ -}}
{{- define "opd.experiment" -}}
{{- set (omit .Values "cluster" "global" "opd-lib" "matrix") "name" .Release.Name | toPrettyJson -}}
{{- end -}}

{{- define "opd.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "opd.metadata" . | nindent 2 }}
immutable: true
data:
  {{- /* A block, so that people can read it; YAML takes some characters in quotes alone. */}}
  {{- $experiment := include "opd.experiment" . }}
  {{- if regexMatch "[\\x7f-\\x{a0}\\x{feff}\\x{fffe}\\x{ffff}]" $experiment }}
  exp.json: {{ $experiment | quote }}
  {{- else }}
  exp.json: |-
    {{- $experiment | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "opd.serviceAccount" -}}
{{- if not (hasKey .Values.cluster.serviceAccount "name") -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "opd.metadata" . | nindent 2 }}
  {{- with .Values.cluster.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{- /* What the account's kind of workload identity needs, or nothing. */ -}}
{{- define "opd.identity" -}}
{{- $account := .Values.cluster.serviceAccount -}}
{{- $found := dict "podLabels" dict "egress" list -}}
{{- range $kind, $needed := (include "opd.constants" . | fromJson).identities -}}
{{- if or (eq $kind ($account.identity | default "")) (hasKey $account.annotations $needed.annotation) -}}
{{- $found = $needed -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* Kept by `helm uninstall`: installing the same name again resumes from it. */ -}}
{{- define "opd.checkpointsObject" -}}
{{- $checkpoints := .Values.cluster.checkpoints -}}
{{- if not (or $checkpoints.ephemeral (hasKey $checkpoints "claim")) -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "opd.checkpointsClaim" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "opd.labels" . | nindent 4 }}
  annotations:
    helm.sh/resource-policy: keep
spec:
  accessModes: [{{ $checkpoints.accessMode }}]
  {{- with $checkpoints.storageClass }}
  storageClassName: {{ . | quote }}
  {{- end }}
  resources:
    requests:
      storage: {{ $checkpoints.size | quote }}
{{- end -}}
{{- end -}}

{{- define "opd.podMonitor" -}}
{{- with .Values.cluster.podMonitor -}}
{{- if .enabled -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ $.Release.Name }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- merge (include "opd.labels" $ | fromYaml) .labels | toYaml | nindent 4 }}
spec:
  selector:
    {{- include "opd.selector" (list $ "head" "worker") | nindent 4 }}
  podMetricsEndpoints:
    - port: metrics
      interval: {{ .interval | quote }}
      # What alerts and dashboard know a run by; Ray's own metrics do not name it.
      relabelings:
        - sourceLabels: [__meta_kubernetes_pod_label_opd_run_id]
          targetLabel: run
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* `helm test`: the image starts as the run's user and reads the experiment; prints verl's overrides. */ -}}
{{- define "opd.test" -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ .Release.Name }}-test
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "opd.labels" . | nindent 4 }}
    app.kubernetes.io/component: test
  annotations:
    helm.sh/hook: test
    helm.sh/hook-delete-policy: before-hook-creation
spec:
  {{- include "opd.withPodSpec" (list . "submitter" (include "opd.testPodSpec" .)) | nindent 2 }}
{{- end -}}

{{- /* The submitter's pod by placement, podSpec and container name, with another command. */ -}}
{{- define "opd.testPodSpec" -}}
{{- include "opd.podSpec" (list . .Values.cluster.submitter) }}
restartPolicy: Never
containers:
  - name: submitter
    {{- include "opd.container" . | nindent 4 }}
    {{- include "opd.sideContainerSecurity" . | nindent 4 }}
    command: [python, -m, opd.launch, /etc/opd/exp.json, --dry-run]
    env:
      {{- include "opd.sideEnv" (list . "/tmp") | nindent 6 }}
    resources:
      requests: {cpu: 100m, memory: 512Mi}
      limits: {memory: 2Gi}
    volumeMounts:
      - {name: experiment, mountPath: /etc/opd, readOnly: true}
      - {name: scratch, mountPath: /tmp}
volumes:
  - name: experiment
    configMap:
      name: {{ .Release.Name }}
  - name: scratch
    emptyDir:
      sizeLimit: 1Gi
{{- end -}}
