{{- /* `podSpec`: the fields of a pod's spec that the values give, merged last over the chart's own. */ -}}

{{- /* (list $ "worker" text): the pod spec that `text` is, with the group's podSpec over it. A container that podSpec adds
     is as restricted as ours. */ -}}
{{- define "opd.withPodSpec" -}}
{{- $root := index . 0 -}}{{- $role := index . 1 -}}
{{- $patch := index $root.Values.cluster $role "podSpec" -}}
{{- $spec := include "opd.merged" (list (index . 2 | fromYaml) (omit $patch "unset")) | fromJson -}}
{{- range $key := list "containers" "initContainers" -}}
{{- range index $spec $key -}}
{{- if and (kindIs "map" .) (not (hasKey . "securityContext")) -}}
{{- $_ := set . "securityContext" (include "opd.containerSecurity" $root | fromYaml).securityContext -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $index, $path := include "opd.unset" (list $root $role) | fromJsonArray -}}
{{- $without := include "opd.without" (list $spec $path "") | fromJson -}}
{{- if not $without.found -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.%s.podSpec.unset.%d" $role $index) "value" $path
  "rule" "the pod has no such field" "fix" "look at what `helm template` renders, or remove the path") -}}
{{- end -}}
{{- $spec = $without.tree -}}
{{- end -}}
{{- toYaml $spec -}}
{{- end -}}

{{- /* (list $ "worker"): the paths that podSpec drops. */ -}}
{{- define "opd.unset" -}}
{{- $root := index . 0 -}}{{- $role := index . 1 -}}
{{- $unset := get (index $root.Values.cluster $role "podSpec") "unset" | default list -}}
{{- $isList := kindIs "slice" $unset -}}
{{- if $isList -}}{{- range $unset -}}{{- if not (kindIs "string" .) -}}{{- $isList = false -}}{{- end -}}{{- end -}}{{- end -}}
{{- if not $isList -}}
{{- $known := (include "opd.constants" $root | fromJson).podSpec -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.%s.podSpec.unset" $role) "value" $unset "rule" $known.unsetRule "fix" $known.unsetFix) -}}
{{- end -}}
{{- toJson $unset -}}
{{- end -}}

{{- /* The lists whose items merge one by one, and the key that an item is known by. */ -}}
{{- define "opd.itemKeys" -}}
{"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "imagePullSecrets": "name",
 "volumeMounts": "mountPath", "ports": "containerPort", "tolerations": "key", "topologySpreadConstraints": "topologyKey"}
{{- end -}}

{{- /* (list ours theirs): maps, theirs over ours, as JSON. Of a volume or variable only theirs stays: two sources in one
     would be refused. */ -}}
{{- define "opd.merged" -}}
{{- $out := deepCopy (index . 0) -}}
{{- $itemKeys := include "opd.itemKeys" . | fromJson -}}
{{- range $key, $value := index . 1 -}}
{{- $ours := get $out $key -}}
{{- if and (kindIs "map" $ours) (kindIs "map" $value) -}}
{{- $_ := set $out $key (include "opd.merged" (list $ours $value) | fromJson) -}}
{{- else if and (kindIs "slice" $ours) (kindIs "slice" $value) (hasKey $itemKeys $key) -}}
{{- $items := $ours -}}
{{- range $item := $value -}}
{{- $name := include "opd.itemName" (list $item (get $itemKeys $key)) -}}
{{- $isNew := true -}}{{- $next := list -}}
{{- range $own := $items -}}
{{- if and $name (eq $name (include "opd.itemName" (list $own (get $itemKeys $key)))) -}}
{{- $isNew = false -}}
{{- if has $key (list "volumes" "env") -}}{{- $own = $item -}}
{{- else -}}{{- $own = include "opd.merged" (list $own $item) | fromJson -}}{{- end -}}
{{- end -}}
{{- $next = append $next $own -}}
{{- end -}}
{{- $items = $isNew | ternary (append $next $item) $next -}}
{{- end -}}
{{- $_ := set $out $key $items -}}
{{- else -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- /* (list item "name"): what the item is known by, or nothing. */ -}}
{{- define "opd.itemName" -}}
{{- if kindIs "map" (index . 0) -}}{{- get (index . 0) (index . 1) -}}{{- end -}}
{{- end -}}

{{- /* (list tree path itemKey): {tree, found}: without what the dotted path names. A key may hold dots itself; a list's items
     go by their `itemKey`. */ -}}
{{- define "opd.without" -}}
{{- $tree := index . 0 -}}{{- $path := index . 1 -}}{{- $itemKey := index . 2 -}}
{{- $isList := kindIs "slice" $tree -}}
{{- $kept := $isList | ternary list dict -}}{{- $found := false -}}
{{- range $key, $value := $tree -}}
{{- $name := $key -}}{{- $stays := true -}}
{{- if $isList -}}{{- $name = include "opd.itemName" (list $value $itemKey) -}}{{- end -}}
{{- if and $name (eq $name $path) -}}
{{- $found = true -}}{{- $stays = false -}}
{{- else if and $name (hasPrefix (printf "%s." $name) $path) (or (kindIs "map" $value) (kindIs "slice" $value)) -}}
{{- $below := trimPrefix (printf "%s." $name) $path -}}
{{- $without := include "opd.without" (list $value $below (get (include "opd.itemKeys" . | fromJson) $name)) | fromJson -}}
{{- $found = or $found $without.found -}}{{- $value = $without.tree -}}
{{- end -}}
{{- if and $stays $isList -}}{{- $kept = append $kept $value -}}{{- else if $stays -}}{{- $_ := set $kept $name $value -}}{{- end -}}
{{- end -}}
{{- dict "tree" $kept "found" $found | toJson -}}
{{- end -}}
