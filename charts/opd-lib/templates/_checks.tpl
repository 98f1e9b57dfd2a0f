{{- /* What only a chart can check, since it composes the pods, and what goes through trees or text of any depth; every other
     rule is Python, in opd.config. */ -}}

{{- /* Fields that podSpec leaves alone, of every group. */ -}}
{{- define "opd.checkPodSpecs" -}}
{{- $known := (include "opd.constants" . | fromJson).podSpec -}}
{{- range $name := append (include "opd.rayRoles" . | fromJsonArray) "submitter" -}}
{{- $unset := include "opd.unset" (list $ $name) | fromJsonArray -}}
{{- if not $.Values.cluster.podSecurity.acceptUnrestricted -}}
{{- $key := printf "cluster.%s.podSpec" $name -}}
{{- range $index, $path := $unset -}}
{{- range has $path $known.freeToUnset | ternary list (splitList "." $path) -}}
{{- include "opd.checkGuarded" (list $known . (printf "%s.unset.%d" $key $index) $path) -}}
{{- end -}}
{{- end -}}
{{- include "opd.checkPodSpec" (list $known $key (index $.Values.cluster $name).podSpec) -}}
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

{{- /* extraEnv repeats no variable that the experiment sets. */ -}}
{{- define "opd.checkExperimentEnv" -}}
{{- $ours := include "opd.experimentEnv" . | fromJson -}}
{{- range $index, $item := .Values.cluster.extraEnv -}}
{{- if hasKey $ours $item.name -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.extraEnv.%d" $index) "value" $item.name
  "rule" "the experiment sets this variable already, by env or store, for every process of the run"
  "fix" "keep one of the two") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* No two volumes have one path. */ -}}
{{- define "opd.checkMountPaths" -}}
{{- $cluster := .Values.cluster -}}
{{- $taken := dict $cluster.checkpoints.path "cluster.checkpoints.path" "/tmp" "the scratch volume" "/dev/shm" "shared memory" "/etc/opd" "the experiment" "/home/opd" "the home folder" -}}
{{- if hasKey $cluster.cache "claim" -}}
{{- include "opd.takePath" (list $taken "cluster.cache.path" $cluster.cache.path) -}}
{{- end -}}
{{- range $index, $mount := $cluster.mounts -}}
{{- include "opd.takePath" (list $taken (printf "cluster.mounts.%d.path" $index) $mount.path) -}}
{{- end -}}
{{- end -}}

{{- /* (list taken key path) */ -}}
{{- define "opd.takePath" -}}
{{- $taken := index . 0 -}}{{- $key := index . 1 -}}{{- $path := index . 2 -}}
{{- if hasKey $taken $path -}}
{{- include "opd.refuse" (dict "key" $key "value" $path
  "rule" (printf "%s is mounted there already" (index $taken $path))
  "fix" "choose another path") -}}
{{- end -}}
{{- $_ := set $taken $path $key -}}
{{- end -}}

{{- /* Tools without a tool database of their own read it from a mounted volume. */ -}}
{{- define "opd.checkToolVolume" -}}
{{- $cluster := .Values.cluster -}}
{{- range $path := include "opd.databases" . | fromJsonArray -}}
{{- $mounted := list -}}
{{- if not $cluster.checkpoints.ephemeral -}}{{- $mounted = append $mounted $cluster.checkpoints.path -}}{{- end -}}
{{- range $cluster.mounts -}}{{- $mounted = append $mounted .path -}}{{- end -}}
{{- range $cluster.extraVolumeMounts -}}{{- $mounted = append $mounted .mountPath -}}{{- end -}}
{{- $isBelow := or (not (isAbs $path)) (hasKey $cluster.toolDatabase "claim") (hasKey $cluster.toolDatabase "url") -}}
{{- range $mounted -}}{{- if or (eq $path .) (hasPrefix (printf "%s/" .) $path) -}}{{- $isBelow = true -}}{{- end -}}{{- end -}}
{{- if not $isBelow -}}
{{- include "opd.refuse" (dict "key" "agent.database_dir" "value" $path
  "rule" "no volume is mounted there"
  "fix" "set cluster.toolDatabase.claim, or url and sha256; or a path on cluster.mounts") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Raw overrides are read by the trainer; what it refuses by name, the chart refuses too. */ -}}
{{- define "opd.checkOverrides" -}}
{{- $constants := include "opd.constants" . | fromJson -}}
{{- range $run := include "opd.runs" . | fromJsonArray -}}
{{- range $index, $text := $run.Values.overrides -}}
{{- $key := regexReplaceAll "^[+~]*([^=]*)(?s:=.*)?$" $text "${1}" -}}
{{- $value := regexReplaceAll "^[^=]*=?" $text "" | trimAll "'\"" | lower -}}
{{- if or (regexMatch $constants.secretInText $text) (regexMatch $constants.urlCredentials $text) -}}
{{- include "opd.refuse" (dict "under" $run.Values.under "key" (printf "overrides.%d" $index) "value" "<redacted>"
  "rule" "a secret is never written into an override"
  "fix" "refer to an existing Secret (cluster.secrets, cluster.envFrom)") -}}
{{- end -}}
{{- range $constants.refused -}}
{{- if and (regexMatch .pattern $key) (not (has $value .harmless)) (not (hasPrefix "~" $text)) -}}
{{- include "opd.refuse" (dict "under" $run.Values.under "key" (printf "overrides.%d" $index) "value" $text "rule" .rule "fix" "remove the override") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
