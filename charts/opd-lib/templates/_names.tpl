{{- /* Owns names and labels. The release name is the run id: it names every object and the prefix in the store. */ -}}

{{- /* Labels of every object of the run. */ -}}
{{- define "opd.labels" -}}
{{- $cluster := .Values.cluster -}}
{{- $own := dict
  "app.kubernetes.io/name" .Chart.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version)
-}}
{{- merge (include "opd.runLabels" . | fromYaml) $own $cluster.labels | toYaml -}}
{{- end -}}

{{- /* Labels of the run that its pods carry too. Pods must not have app.kubernetes.io/name or created-by: KubeRay's head
     service selects pods by its own values of these two. */ -}}
{{- define "opd.runLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/part-of: opd
opd/run-id: {{ .Release.Name | quote }}
opd/experiment: {{ .Values.name | default .Release.Name | quote }}
opd/kind: {{ .Values.kind | quote }}
{{- end -}}

{{- /* Labels of a pod: (list $ "head" group). RayJob labels do not reach pods. */ -}}
{{- define "opd.podLabels" -}}
{{- $root := index . 0 -}}
{{- $own := set (include "opd.runLabels" $root | fromYaml) "app.kubernetes.io/component" (index . 1) -}}
{{- merge $own (index . 2).labels $root.Values.cluster.labels | toYaml -}}
{{- end -}}

{{- /* Selector of the run's pods: (list $ "head" "worker"). */ -}}
{{- define "opd.selector" -}}
matchLabels:
  opd/run-id: {{ (first .).Release.Name | quote }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values: {{ rest . | toJson }}
{{- end -}}

{{- define "opd.metadata" -}}
name: {{ .Release.Name }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "opd.labels" . | nindent 2 }}
{{- end -}}
