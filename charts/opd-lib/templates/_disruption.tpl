{{- /* What keeps the cluster from moving a run's Ray pods: each that goes ends the attempt. */ -}}

{{- /* All of them are wanted, as a number: Kubernetes asks the pods' owner for a scale otherwise, and a RayCluster has none.
     A pod that is not ready holds up nothing. */ -}}
{{- define "opd.disruptionBudget" -}}
{{- if .Values.cluster.disruption.budget -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "opd.metadata" . | nindent 2 }}
spec:
  minAvailable: {{ if include "opd.hasWorkers" . }}{{ add 1 ((include "opd.workers" . | fromJson).count | int64) }}{{ else }}1{{ end }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    {{- include "opd.selector" (list . "head" "worker") | nindent 4 }}
{{- end -}}
{{- end -}}

{{- /* (list $ group): the annotations of a Ray pod. */ -}}
{{- define "opd.rayAnnotations" -}}
{{- $autoscalers := dict "cluster-autoscaler.kubernetes.io/safe-to-evict" "false" "karpenter.sh/do-not-disrupt" "true" -}}
{{- $own := (index . 0).Values.cluster.disruption.autoscalers | ternary $autoscalers dict -}}
{{- merge (deepCopy (index . 1).annotations) $own | toYaml -}}
{{- end -}}
