{{- /* Owns what every pod of a run has: security (Pod Security `restricted`), placement, pull secrets, identity. */ -}}

{{- /* Fields of a pod's spec: (list $ group). No API token, no service links: a Service named `master` would inject
     MASTER_PORT=tcp://... */ -}}
{{- define "opd.podSpec" -}}
{{- $root := index . 0 -}}{{- $group := index . 1 -}}
{{- $cluster := $root.Values.cluster -}}
serviceAccountName: {{ $cluster.serviceAccount.name | default $root.Release.Name | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ int64 $cluster.podSecurity.runAsUser }}
  runAsGroup: {{ int64 $cluster.podSecurity.runAsGroup }}
  fsGroup: {{ int64 $cluster.podSecurity.fsGroup }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with $cluster.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with index $group $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with $group.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- /* Image and security of every container, KubeRay's own init containers included (it copies them). */ -}}
{{- define "opd.container" -}}
image: {{ .Values.cluster.image.ref | quote }}
{{ include "opd.pullPolicy" . }}
{{- end -}}

{{- define "opd.pullPolicy" -}}
{{- $image := .Values.cluster.image -}}
imagePullPolicy: {{ $image.pullPolicy | default ($image.local | ternary "Never" "IfNotPresent") }}
{{- end -}}

{{- define "opd.containerSecurity" -}}
securityContext:
  runAsNonRoot: true
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- /* Of containers that write nowhere but to what they mount. Ray's own write logs, caches and compiled kernels in places
     that differ between images and Ray's versions. */ -}}
{{- define "opd.sideContainerSecurity" -}}
{{ include "opd.containerSecurity" . }}
  readOnlyRootFilesystem: true
{{- end -}}

{{- /* Requests and limits of a side container that only waits, reads or fetches. */ -}}
{{- define "opd.smallResources" -}}
resources:
  requests: {cpu: 50m, memory: 128Mi}
  limits: {memory: 512Mi}
{{- end -}}
