{{- /* The rules about requests and limits, the same ones as opd.config.cluster.rules: what would wait for ever, or be killed. */ -}}

{{- define "opd.checkResources" -}}
{{- include "opd.checkRayResources" (list . "head") -}}
{{- include "opd.checkLimits" (list "submitter" .Values.cluster.submitter) -}}
{{- if include "opd.hasWorkers" . -}}
{{- include "opd.checkRayResources" (list . "worker") -}}
{{- include "opd.checkSharedVolume" . -}}
{{- end -}}
{{- end -}}

{{- /* (list $ "worker") */ -}}
{{- define "opd.checkRayResources" -}}
{{- $root := index . 0 -}}{{- $role := index . 1 -}}
{{- $group := include "opd.rayPods" . | fromJson -}}{{- $needs := include "opd.needs" . | fromJson -}}
{{- include "opd.checkLimits" (list $role $group) -}}
{{- if and (eq $role "worker") (eq $root.Values.device "cuda") -}}
{{- $counted := hasKey $group.limits "cpu" | ternary "limits" "requests" -}}
{{- $cpus := index $group $counted "cpu" -}}
{{- if lt (include "opd.quantity" $cpus | float64 | ceil) (float64 $needs.cpus) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.worker.%s.cpu" $counted) "value" $cpus
  "rule" (printf "Ray places a run by CPUs, and a node of this one needs %d (%s): with fewer it would hold its GPUs and wait for ever" (int64 $needs.cpus) $needs.byPart)
  "fix" (printf "use at least %d, or remove the key" (int64 $needs.cpus))) -}}
{{- end -}}
{{- end -}}
{{- $memory := include "opd.quantity" $group.limits.memory | float64 -}}
{{- if lt $memory (mulf $group.shmGib 1073741824) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.%s.shmGib" $role) "value" $group.shmGib
  "rule" (printf "/dev/shm counts against the memory limit, which is %v" $group.limits.memory)
  "fix" (printf "lower it, or raise cluster.%s.limits.memory" $role)) -}}
{{- end -}}
{{- $least := addf $needs.leastGib $group.objectStoreGib | ceil -}}
{{- if lt $memory (mulf $least 1073741824) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.%s.limits.memory" $role) "value" $group.limits.memory
  "rule" (printf "the processes of one pod and Ray's object store take %d GiB before a model is loaded" (int64 $least))
  "fix" (printf "use at least %dGi, or remove the key" (int64 $least))) -}}
{{- end -}}
{{- end -}}

{{- /* (list "submitter" group): the API server refuses such a pod only when KubeRay makes it. */ -}}
{{- define "opd.checkLimits" -}}
{{- $role := index . 0 -}}{{- $group := index . 1 -}}
{{- range $name, $request := $group.requests -}}
{{- if hasKey $group.limits $name -}}
{{- $limit := index $group.limits $name -}}
{{- if gt (include "opd.quantity" $request | float64) (include "opd.quantity" $limit | float64) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.%s.requests.%s" $role $name) "value" $request
  "rule" (printf "a request is at most its limit, which is %v" $limit)
  "fix" (printf "lower it, or raise cluster.%s.limits.%s" $role $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkSharedVolume" -}}
{{- $checkpoints := .Values.cluster.checkpoints -}}
{{- $isOwn := not (or $checkpoints.ephemeral (hasKey $checkpoints "claim")) -}}
{{- if and $isOwn (eq $checkpoints.accessMode "ReadWriteOnce") (gt (int64 .Values.trainer.nnodes) 1) -}}
{{- include "opd.refuse" (dict "key" "cluster.checkpoints.accessMode" "value" $checkpoints.accessMode
  "rule" (printf "all Ray pods mount the volume, ReadWriteOnce binds them to one node, and trainer.nnodes is %d" (int64 .Values.trainer.nnodes))
  "fix" "use ReadWriteMany with a StorageClass that has it, or cluster.checkpoints.ephemeral: true") -}}
{{- end -}}
{{- end -}}
