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
              kubernetes.io/metadata.name: {{ $policy.operatorNamespace | quote }}
      ports:
        - {protocol: TCP, port: 8265}
    {{- with $policy.metricsNamespace }}
    - from:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ . | quote }}
      ports:
        - {protocol: TCP, port: 8080}
    {{- end }}
  egress:
    - to:
        - podSelector:
            {{- include "opd.selector" (list . "head" "worker") | nindent 12 }}
    {{- include "opd.egressDns" . | nindent 4 }}
    {{- include "opd.egressStore" . | nindent 4 }}
    {{- range (include "opd.identity" . | fromJson).egress }}
    - to:
        - ipBlock: {cidr: {{ .cidr | quote }}}
      ports:
        {{- range .ports }}
        - {protocol: TCP, port: {{ int64 . }}}
        {{- end }}
    {{- end }}
    {{- range $policy.egress }}
    - to:
        {{- if or .namespace .podLabels }}
        - {{ include "opd.podPeer" . | nindent 10 | trim }}
        {{- else }}
        - ipBlock: {{ include "opd.addresses" (list $ .cidr) }}
        {{- end }}
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

{{- /* Names only from the cluster's own DNS (on OpenShift its pods listen on 5353) or a node's cache of it: a DNS server
     anywhere else would be a way out. */ -}}
{{- define "opd.egressDns" -}}
- to:
    {{- range .Values.cluster.networkPolicy.dnsNamespaces }}
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ . | quote }}
    {{- end }}
    - ipBlock:
        cidr: 169.254.20.10/32
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
    - {protocol: UDP, port: 5353}
    - {protocol: TCP, port: 5353}
{{- end -}}

{{- /* (list $ cidr): an ipBlock. Of all addresses, which is also what no cidr means, those of a node's own link stay closed:
     there a cloud gives out the node's credentials, over plain http. */ -}}
{{- define "opd.addresses" -}}
{{- $constants := include "opd.constants" (index . 0) | fromJson -}}
{{- $cidr := index . 1 | default $constants.allAddresses -}}
{{- $block := dict "cidr" $cidr -}}
{{- with get $constants.ownLinks $cidr -}}{{- $_ := set $block "except" (list .) -}}{{- end -}}
{{- toJson $block -}}
{{- end -}}

{{- /* (dict "namespace" ... "podLabels" ...): pods of a namespace, or of the run's own. */ -}}
{{- define "opd.podPeer" -}}
{{- with .namespace -}}
namespaceSelector:
  matchLabels:
    kubernetes.io/metadata.name: {{ . }}
{{ end -}}
podSelector: {{ with .podLabels }}{matchLabels: {{ toJson . }}}{{ else }}{}{{ end }}
{{- end -}}

{{- /* The way to the server of store.endpoint: its address and port; any address at its port for a host name; the pods of
     the namespace for a Service of the cluster, at any port, since a policy sees the pod's port and not the Service's. */ -}}
{{- define "opd.egressStore" -}}
{{- $store := .Values.store | default dict -}}
{{- if and (hasKey $store "endpoint") (regexMatch "^s3a?://" ($store.url | default "")) -}}
{{- $url := urlParse $store.endpoint -}}
{{- $host := regexReplaceAll ":[0-9]+$" $url.host "" -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (eq $url.scheme "https" | ternary "443" "80") -}}
{{- $cidrs := keys (include "opd.constants" . | fromJson).ownLinks | sortAlpha -}}
{{- $isService := regexMatch "^[^.]+\\.[^.]+\\.svc(\\.|$)" $host -}}
{{- if regexMatch "^[0-9.]+$" $host -}}{{- $cidrs = list (printf "%s/32" $host) -}}{{- end -}}
{{- if hasPrefix "[" $host -}}{{- $cidrs = list (printf "%s/128" (trimAll "[]" $host)) -}}{{- end -}}
- to:
  {{- if or $isService (regexMatch "^[^.:]+$" $host) }}
    - {{ include "opd.podPeer" (dict "namespace" ($isService | ternary (regexReplaceAll "^[^.]+\\.([^.]+)\\.svc.*" $host "${1}") "")) | nindent 6 | trim }}
  {{- else }}
    {{- range $cidrs }}
    - ipBlock: {{ include "opd.addresses" (list $ .) }}
    {{- end }}
  ports:
    - {protocol: TCP, port: {{ $port }}}
  {{- end }}
{{- end -}}
{{- end -}}
