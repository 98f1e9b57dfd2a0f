{{- /* Owns what Helm prints after an installation: the exact commands for this run. */ -}}

{{- define "opd.notes" -}}
{{- $ns := .Release.Namespace -}}{{- $name := .Release.Name -}}
{{- $cluster := .Values.cluster -}}
Run {{ $name }} ({{ .Values.kind }}, experiment {{ .Values.name | default $name }}) is submitted.

status    opdctl status {{ $name }} -n {{ $ns }}
          kubectl get rayjob {{ $name }} -n {{ $ns }} -w
log       opdctl logs -f {{ $name }} -n {{ $ns }}
{{- if eq $cluster.submissionMode "K8sJobMode" }}
          kubectl logs -f job/{{ $name }} -n {{ $ns }}
{{- else }}
          kubectl logs -f -n {{ $ns }} -c log --tail=-1 -l opd/run-id={{ $name }},app.kubernetes.io/component=head
{{- end }}
result    opdctl collect {{ $name }} -n {{ $ns }}
cancel    opdctl cancel {{ $name }} -n {{ $ns }}    (saves first; never `ray job stop`: a stopped job is cleaned up by nobody)
{{- if and (eq $cluster.lifecycle "suspendable") (ne (dig "queue" "manager" "" $cluster) "kueue") }}
suspend   kubectl patch rayjob {{ $name }} -n {{ $ns }} --type merge -p '{"spec":{"suspend":true}}'
{{- end }}
resume    helm uninstall {{ $name }} -n {{ $ns }}, then the same helm install again: it goes on from the newest checkpoint
clean up  helm uninstall {{ $name }} -n {{ $ns }}
{{- if not (or $cluster.checkpoints.ephemeral (hasKey $cluster.checkpoints "claim")) }}
          keeps the claim with the checkpoints; to delete it for good:
          kubectl delete pvc {{ include "opd.checkpointsClaim" . }} -n {{ $ns }}
{{- end }}
{{- if hasKey $cluster.deadlines "activeSeconds" }}

The run is ended for good {{ int64 $cluster.deadlines.activeSeconds }} s after its start; it saves before.
{{- end }}

"no matches for kind RayJob" means that KubeRay (1.6 or newer) is not installed here; `opdctl doctor` says what else is missing.
{{- end -}}
