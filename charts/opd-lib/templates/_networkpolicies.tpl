{{- /* Owns who may talk to whom: the Ray pods among themselves, submitter and operator to the dashboard, DNS, and the ways
     out that the values name. A policy that selects a pod denies it everything else. */ -}}

{{- define "opd.networkPolicy" -}}
{{- $policy := .Values.cluster.networkPolicy -}}
{{- if $policy.enabled -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "opd.metadata" . | nindent 2 }}
spec:
  podSelector:
    {{- include "opd.selector" (list . "head" "worker") | nindent 4 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - podSelector:
            {{- include "opd.selector" (list . "head" "worker") | nindent 12 }}
    - from:
        - podSelector:
            {{- include "opd.selector" (list . "submitter") | nindent 12 }}
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ $policy.operatorNamespace }}
      ports:
        - {protocol: TCP, port: 8265}
    {{- with $policy.metricsNamespace }}
    - from:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ . }}
      ports:
        - {protocol: TCP, port: 8080}
    {{- end }}
  egress:
    - to:
        - podSelector:
            {{- include "opd.selector" (list . "head" "worker") | nindent 12 }}
    {{- include "opd.egressDns" . | nindent 4 }}
    {{- range $policy.egress }}
    - to:
        - ipBlock:
            cidr: {{ .cidr }}
      ports:
        {{- range .ports }}
        - {protocol: TCP, port: {{ int64 . }}}
        {{- end }}
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "opd.submitterNetworkPolicy" -}}
{{- if and .Values.cluster.networkPolicy.enabled (eq .Values.cluster.submissionMode "K8sJobMode") -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .Release.Name }}-submitter
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "opd.labels" . | nindent 4 }}
spec:
  podSelector:
    {{- include "opd.selector" (list . "submitter") | nindent 4 }}
  policyTypes: [Ingress, Egress]
  egress:
    - to:
        - podSelector:
            {{- include "opd.selector" (list . "head") | nindent 12 }}
      ports:
        - {protocol: TCP, port: 8265}
    {{- include "opd.egressDns" . | nindent 4 }}
{{- end -}}
{{- end -}}

{{- define "opd.egressDns" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end -}}
