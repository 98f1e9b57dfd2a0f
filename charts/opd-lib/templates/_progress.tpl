{{- /* On request: the ConfigMap `RUN-progress`, which the driver in the head patches, and the right to this one object. The chart
     makes the object, so that nobody needs the right to create; its token is in no pod but the head, and there under no path
     where a client would look by itself. */ -}}

{{- /* A conversion has no steps to tell. */ -}}
{{- define "opd.hasProgress" -}}
{{- if and .Values.cluster.progress.enabled (ne .Chart.Name "convert") }}true{{ end -}}
{{- end -}}

{{- define "opd.progress" -}}
{{- if include "opd.hasProgress" . -}}
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "opd.progressMetadata" . | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "opd.progressMetadata" . | nindent 2 }}
rules:
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [{{ include "opd.progressName" . }}]
    verbs: [get, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "opd.progressMetadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "opd.progressName" . }}
subjects:
  - kind: ServiceAccount
    name: {{ .Values.cluster.serviceAccount.name | default .Release.Name | quote }}
    namespace: {{ .Release.Namespace }}
{{- if .Values.cluster.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "opd.progressMetadata" . | nindent 2 }}
spec:
  podSelector:
    {{- include "opd.selector" (list . "head") | nindent 4 }}
  policyTypes: [Egress]
  egress:
    - to:
        - ipBlock: {{ include "opd.addresses" (list . .Values.cluster.progress.apiServer.cidr) }}
      ports:
        {{- range .Values.cluster.progress.apiServer.ports }}
        - {protocol: TCP, port: {{ int64 . }}}
        {{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "opd.progressName" -}}
{{ .Release.Name }}-progress
{{- end -}}

{{- define "opd.progressMetadata" -}}
name: {{ include "opd.progressName" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "opd.labels" . | nindent 2 }}
  app.kubernetes.io/component: progress
{{- end -}}

{{- define "opd.progressFolder" -}}
/var/run/secrets/opd-progress
{{- end -}}

{{- /* (list $ "head"): whether pods of this role write the progress. */ -}}
{{- define "opd.writesProgress" -}}
{{- if and (include "opd.hasProgress" (index . 0)) (eq (index . 1) "head") }}true{{ end -}}
{{- end -}}

{{- define "opd.progressEnv" -}}
- name: OPD_PROGRESS_OBJECT
  value: /api/v1/namespaces/{{ .Release.Namespace }}/configmaps/{{ include "opd.progressName" . }}
- name: OPD_PROGRESS_CREDENTIALS
  value: {{ include "opd.progressFolder" . }}
{{- end -}}

{{- define "opd.progressVolume" -}}
- name: progress-token
  projected:
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3600
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
{{- end -}}
