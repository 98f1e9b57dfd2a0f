{{- /* What a run needs of its nodes: the table of opd.config.needs times the counts of these values, as there. */ -}}

{{- /* How many of each there are on the fullest node. */ -}}
{{- define "opd.counts" -}}
{{- $constants := include "opd.constants" . | fromJson -}}
{{- $filled := include "opd.filled" . | fromJson -}}
{{- $nodes := int64 $filled.trainer.nnodes -}}{{- $gpus := int64 $filled.trainer.gpus_per_node -}}
{{- $units := eq .Values.device "cpu" | ternary $constants.storageUnits.cpu (mul $constants.storageUnits.aNode $nodes) | int64 -}}
{{- range $text := .Values.overrides -}}
{{- if regexMatch $constants.storageUnits.override $text -}}
{{- $units = regexReplaceAll $constants.storageUnits.override $text "${1}" | int64 -}}
{{- end -}}
{{- end -}}
{{- $counts := dict "node" 1 "rank" $gpus "gpu" (eq .Values.device "cuda" | ternary $gpus 0) -}}
{{- $_ := set $counts "copy" (($filled.checkpoint).overlap | default false | ternary $counts.gpu 0) -}}
{{- range $name, $number := dict "storage unit" $units "rollout worker" (($filled.rollout).num_agent_workers | default 0) "reward worker" (($filled.reward).num_workers | default 0) -}}
{{- $_ := set $counts $name (div (sub (add $number $nodes) 1) $nodes) -}}
{{- end -}}
{{- toJson $counts -}}
{{- end -}}

{{- /* (list $ "head"): CPUs, GiB of memory at least and with room, and the CPUs by part: of each the most that a run needs. */ -}}
{{- define "opd.needs" -}}
{{- $role := index . 1 -}}
{{- $most := dict "cpus" 0.0 "leastGib" 0.0 "memoryGib" 0.0 "byPart" "" -}}
{{- range include "opd.runs" (index . 0) | fromJsonArray -}}
{{- if or (eq $role "head") (ne .Chart.Name "convert") -}}
{{- $needs := include "opd.needsOfRun" (list . $role) | fromJson -}}
{{- if gt $needs.cpus $most.cpus -}}{{- $_ := set $most "byPart" $needs.byPart -}}{{- end -}}
{{- range $name := list "cpus" "leastGib" "memoryGib" -}}
{{- $_ := set $most $name (maxf (index $most $name) (index $needs $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $most -}}
{{- end -}}

{{- /* (list run "head"), as opd.needs. */ -}}
{{- define "opd.needsOfRun" -}}
{{- $run := index . 0 -}}{{- $role := index . 1 -}}
{{- $table := (include "opd.constants" $run | fromJson).needs -}}
{{- $counts := dict "node" 1 -}}
{{- if eq $role "worker" -}}{{- $counts = include "opd.counts" $run | fromJson -}}{{- end -}}
{{- $cpus := int64 0 -}}{{- $least := 0.0 -}}{{- $room := 0.0 -}}{{- $byPart := list -}}
{{- range index $table (eq $run.Chart.Name "convert" | ternary "convert" $role) -}}
{{- $count := index $counts .per | int64 -}}
{{- $least = addf $least (mulf .leastGib $count) -}}
{{- $room = addf $room (mulf .roomGib $count) -}}
{{- $ofPart := mul .cpus $count -}}
{{- $cpus = add $cpus $ofPart -}}
{{- if $ofPart -}}{{- $byPart = append $byPart (printf "%s %d" .name $ofPart) -}}{{- end -}}
{{- end -}}
{{- dict "cpus" $cpus "leastGib" $least "memoryGib" (addf $least $room) "byPart" (join ", " $byPart) | toJson -}}
{{- end -}}

{{- /* (list $ "head"): the group with all its requests and limits: what is not given is what is needed. */ -}}
{{- define "opd.rayPods" -}}
{{- $root := index . 0 -}}{{- $role := index . 1 -}}
{{- $group := index $root.Values.cluster $role -}}
{{- $needs := include "opd.needs" . | fromJson -}}
{{- $memory := printf "%dGi" (ceil (addf $needs.memoryGib $group.shmGib) | int64) -}}
{{- $requests := dict "cpu" (dig "cpu" (int64 $needs.cpus) $group.limits) "memory" (dig "memory" $memory $group.limits) -}}
{{- range $name, $value := $group.requests -}}{{- $_ := set $requests $name $value -}}{{- end -}}
{{- $limits := dict "memory" $requests.memory -}}
{{- range $name, $value := $group.limits -}}{{- $_ := set $limits $name $value -}}{{- end -}}
{{- merge (dict "requests" $requests "limits" $limits) (omit $group "requests" "limits") | toJson -}}
{{- end -}}
