{{- /* Owns the rules about groups of pods, GPUs and the tool database. */ -}}

{{- define "opd.checkPods" -}}
{{- include "opd.checkRayPods" (list "head" .Values.cluster.head) -}}
{{- $groups := dict "head" .Values.cluster.head "submitter" .Values.cluster.submitter -}}
{{- if include "opd.hasWorkers" . -}}{{- $_ := set $groups "worker" .Values.cluster.worker -}}{{- end -}}
{{- range $name, $group := $groups -}}
{{- $unset := include "opd.unset" (list $ $name) | fromJsonArray -}}
{{- if not $.Values.cluster.podSecurity.acceptUnrestricted -}}
{{- $known := (include "opd.constants" $ | fromJson).podSpec -}}
{{- $key := printf "cluster.%s.podSpec" $name -}}
{{- range $index, $path := $unset -}}
{{- range has $path $known.freeToUnset | ternary list (splitList "." $path) -}}
{{- include "opd.checkGuarded" (list $known . (printf "%s.unset.%d" $key $index) $path) -}}
{{- end -}}
{{- end -}}
{{- include "opd.checkPodSpec" (list $known $key $group.podSpec) -}}
{{- end -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/created-by" -}}
{{- if or (hasKey $group.labels $label) (hasKey $.Values.cluster.labels $label) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.%s.labels" $name) "value" $label
  "rule" "KubeRay's head service finds its pod by this label"
  "fix" "use another label") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* (list constants path tree): fields that podSpec leaves alone, at any depth. */ -}}
{{- define "opd.checkPodSpec" -}}
{{- $known := index . 0 -}}{{- $path := index . 1 -}}
{{- range $key, $value := index . 2 -}}
{{- $below := printf "%s.%v" $path $key -}}
{{- include "opd.checkGuarded" (list $known $key $below $value) -}}
{{- if or (kindIs "map" $value) (kindIs "slice" $value) -}}
{{- include "opd.checkPodSpec" (list $known $below $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* (list constants field key value) */ -}}
{{- define "opd.checkGuarded" -}}
{{- $known := index . 0 -}}
{{- if has (index . 1) $known.guarded -}}
{{- include "opd.refuse" (dict "key" (index . 2) "value" (index . 3) "rule" $known.rule "fix" $known.fix) -}}
{{- end -}}
{{- end -}}

{{- /* (list "head" group) */ -}}
{{- define "opd.checkRayPods" -}}
{{- $name := index . 0 -}}{{- $group := index . 1 -}}
{{- if gt (float64 $group.objectStoreGib) (float64 $group.shmGib) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.%s.objectStoreGib" $name) "value" $group.objectStoreGib
  "rule" (printf "Ray's object store lies in /dev/shm, which has %v GiB" $group.shmGib)
  "fix" (printf "raise cluster.%s.shmGib, or lower objectStoreGib" $name)) -}}
{{- end -}}
{{- range $key := list "num-cpus" "num-gpus" "object-store-memory" "dashboard-host" "memory" "resources" "labels" "block" -}}
{{- if hasKey $group.rayStartParams $key -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.%s.rayStartParams.%s" $name $key) "value" (index $group.rayStartParams $key)
  "rule" "the chart sets it from the spec, or KubeRay does"
  "fix" "remove it") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkWorkers" -}}
{{- $cluster := .Values.cluster -}}
{{- include "opd.checkRayPods" (list "worker" $cluster.worker) -}}
{{- range $field := list "requests" "limits" -}}
{{- if hasKey (index $cluster.worker $field) $cluster.gpu.resource -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.worker.%s" $field) "value" $cluster.gpu.resource
  "rule" "the number of GPUs is said once, in trainer.gpus_per_node"
  "fix" "remove it here") -}}
{{- end -}}
{{- end -}}
{{- if and $cluster.rdma.ipcLock (not $cluster.rdma.enabled) -}}
{{- include "opd.refuse" (dict "key" "cluster.rdma.ipcLock" "value" true
  "rule" "the capability is for RDMA only"
  "fix" "set cluster.rdma.enabled: true, or remove ipcLock") -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkToolDatabase" -}}
{{- $cluster := .Values.cluster -}}
{{- $database := $cluster.toolDatabase -}}
{{- $sources := list -}}
{{- range $key := list "claim" "url" -}}
{{- if hasKey $database $key -}}{{- $sources = append $sources $key -}}{{- end -}}
{{- end -}}
{{- if gt (len $sources) 1 -}}
{{- include "opd.refuse" (dict "key" "cluster.toolDatabase" "value" $sources
  "rule" "the tool database comes from one place"
  "fix" "keep claim or url") -}}
{{- end -}}
{{- if ne (hasKey $database "url") (hasKey $database "sha256") -}}
{{- include "opd.refuse" (dict "key" "cluster.toolDatabase.sha256" "value" ($database.sha256 | default "")
  "rule" "a fetched database is verified: url and sha256 belong together"
  "fix" "give both") -}}
{{- end -}}
{{- if hasKey .Values "agent" -}}
{{- $path := .Values.agent.database_dir -}}
{{- $mounted := list -}}
{{- if not $cluster.checkpoints.ephemeral -}}{{- $mounted = append $mounted $cluster.checkpoints.path -}}{{- end -}}
{{- range $cluster.mounts -}}{{- $mounted = append $mounted .path -}}{{- end -}}
{{- range $cluster.extraVolumeMounts -}}{{- $mounted = append $mounted .mountPath -}}{{- end -}}
{{- $isBelow := not (isAbs $path) -}}
{{- range $mounted -}}{{- if or (eq $path .) (hasPrefix (printf "%s/" .) $path) -}}{{- $isBelow = true -}}{{- end -}}{{- end -}}
{{- if and (not $sources) (not $isBelow) -}}
{{- include "opd.refuse" (dict "key" "agent.database_dir" "value" $path
  "rule" "no volume is mounted there"
  "fix" "set cluster.toolDatabase.claim, or url and sha256; or a path on cluster.mounts") -}}
{{- end -}}
{{- if and $sources (not (isAbs $path)) -}}
{{- include "opd.refuse" (dict "key" "agent.database_dir" "value" $path
  "rule" "the tool database is mounted there, so it is an absolute path"
  "fix" "use /databases/NAME") -}}
{{- end -}}
{{- else if $sources -}}
{{- include "opd.refuse" (dict "key" "cluster.toolDatabase" "value" $sources
  "rule" "no tool uses it: the spec has no `agent`"
  "fix" "remove it, or add agent.database_dir") -}}
{{- end -}}
{{- end -}}
