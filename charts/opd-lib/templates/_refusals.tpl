{{- /* Values that a chart rejects: those must not reach the API server, or only a running cluster would show their fault.
     All other rules are in opd.experiment; the pre-install check applies them (check.yaml). */ -}}

{{- /* (list key rule fix) or (list key rule fix value) */ -}}
{{- define "opd.fail" -}}
{{- $value := len . | lt 3 | ternary (printf "    value: %s\n" (last . | toJson)) "" -}}
{{- fail (printf "\n\n  %s\n%s    rule:  %s\n    fix:   %s\n" (index . 0) $value (index . 1) (index . 2)) -}}
{{- end -}}

{{- define "opd.refusals" -}}
{{- $cluster := .Values.cluster -}}{{- $run := include "opd.run" . -}}
{{- /* `helm lint` of a chart alone has no kind. */ -}}
{{- if not .Values.kind -}}
{{- include "opd.fail" (list "kind" "missing property 'kind': the values are an experiment, and every experiment says its kind" "give the experiment's file (-f exp.yaml); it begins with `kind: opd`") -}}
{{- end -}}
{{- $kinds := list "grpo" "opd" "opd-agent" "sft" "eval" "passrate" "convert" "pipeline" -}}
{{- if and .Chart.IsRoot .Values.kind (has .Chart.Name $kinds) (ne .Chart.Name .Values.kind) -}}
{{- include "opd.fail" (list "kind" (printf "value must be '%s': this is the chart of that kind" .Chart.Name) (printf "install charts/%s" .Values.kind) .Values.kind) -}}
{{- end -}}
{{- if .Release.IsUpgrade -}}
{{- include "opd.fail" (list "helm upgrade" "KubeRay ignores changes to the cluster of a live RayJob: one release is one run" "install under another name, or uninstall and install again to resume from the newest checkpoint" $run) -}}
{{- end -}}
{{- if or (gt (len $run) 47) (not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $run)) -}}
{{- include "opd.fail" (list "release name" "it names the RayJob: lower-case letters, digits and -, a letter first, at most 47 characters; KubeRay would park any other name as ValidationFailed for good" "choose another release name" $run) -}}
{{- end -}}
{{- if hasKey .Values "matrix" -}}
{{- include "opd.fail" (list "matrix" "a matrix is a sweep of experiments; one release takes one" "render it with `opdctl render` and install the results") -}}
{{- end -}}
{{- include "opd.refuseSecrets" (list "" (omit .Values "global")) -}}
{{- $digest := "run `images/build.sh trainer --push REGISTRY`: it prints the reference to use, with its digest; or set cluster.image.local: true for an image loaded onto the nodes" -}}
{{- range $key, $ref := dict "cluster.image.ref" ($cluster.image.ref | default "") "cluster.submitter.image" ($cluster.submitter.image | default $cluster.image.ref | default "") -}}
{{- if not $ref -}}
{{- include "opd.fail" (list $key "the image is required and has no default" $digest) -}}
{{- else if not (or $cluster.image.local (regexMatch "@sha256:[0-9a-f]{64}$" $ref)) -}}
{{- include "opd.fail" (list $key "an image is named by its digest, so that every pod and every attempt runs the same one" $digest $ref) -}}
{{- end -}}
{{- end -}}
{{- if not (or $cluster.networkPolicy.enabled $cluster.networkPolicy.acceptOpenNetwork) -}}
{{- include "opd.fail" (list "cluster.networkPolicy.enabled" "Ray's token does not guard the ports on which verl and torch exchange pickled objects: without a policy every pod that reaches them runs code in the run" "leave it true; or, where something else keeps other pods away, set cluster.networkPolicy.acceptOpenNetwork: true") -}}
{{- end -}}
{{- /* Row a11: the guard holds for volumes that the values bring, too. */ -}}
{{- if not $cluster.podSecurity.acceptUnrestricted -}}
{{- range $key, $tree := dict "head.podSpec" $cluster.head.podSpec "worker.podSpec" $cluster.worker.podSpec "teacher.podSpec" $cluster.teacher.podSpec "submitter.podSpec" $cluster.submitter.podSpec "extraVolumes" $cluster.extraVolumes -}}
{{- include "opd.refuseGuarded" (list (printf "cluster.%s" $key) $tree) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* (list path tree): literal secrets. They would end in ConfigMaps, logs and the store. */ -}}
{{- define "opd.refuseSecrets" -}}
{{- $path := index . 0 -}}{{- $tree := index . 1 -}}
{{- $secret := "^[A-Z][A-Z0-9_]*_(TOKEN|KEY|PASSWORD|SECRET)$|^(TOKEN|PASSWORD|SECRET)$" -}}
{{- $inText := "[A-Za-z][A-Za-z0-9+.-]*://[^/@\\s]*:[^/@\\s]*@|[A-Z][A-Z0-9_]*_(TOKEN|KEY|PASSWORD|SECRET)['\"]?\\s*[:=]" -}}
{{- $isVariable := and (kindIs "map" $tree) (regexMatch $secret (dig "name" "" (kindIs "map" $tree | ternary $tree dict) | toString)) -}}
{{- range $key, $value := $tree -}}
{{- $at := printf "%s%v" (empty $path | ternary "" (printf "%s." $path)) $key -}}
{{- $isTree := or (kindIs "map" $value) (kindIs "slice" $value) -}}
{{- $isNamed := or (regexMatch $secret (toString $key)) (and $isVariable (eq (toString $key) "value")) -}}
{{- if or (and $isNamed (not $isTree)) (and (kindIs "string" $value) (regexMatch $inText $value)) -}}
{{- include "opd.fail" (list $at "a secret is never written into a spec: it would end in ConfigMaps, logs and the store" "refer to an existing Secret (cluster.secrets, cluster.envFrom)" "<redacted>") -}}
{{- else if $isTree -}}
{{- include "opd.refuseSecrets" (list $at $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* (list path tree): fields, at any depth, on which Pod Security `restricted` and the pods' identity rest. */ -}}
{{- define "opd.refuseGuarded" -}}
{{- $path := index . 0 -}}
{{- $guarded := list "automountServiceAccountToken" "hostIPC" "hostNetwork" "hostPID" "hostPath" "hostPort" "privileged" "securityContext" "serviceAccount" "serviceAccountName" "serviceAccountToken" -}}
{{- range $key, $value := index . 1 -}}
{{- if has $key $guarded -}}
{{- include "opd.fail" (list (printf "%s.%v" $path $key) "Pod Security `restricted` or the pods' identity rests on it" "remove it (user and groups: cluster.podSecurity; account: cluster.serviceAccount.name), or set cluster.podSecurity.acceptUnrestricted: true" $value) -}}
{{- else if or (kindIs "map" $value) (kindIs "slice" $value) -}}
{{- include "opd.refuseGuarded" (list (printf "%s.%v" $path $key) $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* (list role spec): row a8. Helm and KubeRay pass a pod with two volumes of one name or path, and no pod ever starts. */ -}}
{{- define "opd.refusePod" -}}
{{- $role := index . 0 -}}{{- $spec := index . 1 -}}
{{- $volumes := list -}}
{{- range $spec.volumes -}}
{{- if has .name $volumes -}}
{{- include "opd.fail" (list (printf "volumes of %s pods" $role) "two volumes have this name" "rename the volume in cluster.extraVolumes" .name) -}}
{{- end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- range concat ($spec.initContainers | default list) $spec.containers -}}
{{- if not .image -}}
{{- include "opd.fail" (list (printf "cluster.%s.podSpec.containers" $role) "no container of the pod has this name, and a new one needs an image" "name the chart's container (ray-head, ray-worker, ray-teacher, submitter), or give an image" .name) -}}
{{- end -}}
{{- $paths := list -}}
{{- range .volumeMounts -}}
{{- if has .mountPath $paths -}}
{{- include "opd.fail" (list (printf "mounts of %s pods" $role) "another volume is mounted there already" "choose another path in cluster.mounts, cluster.cache, cluster.checkpoints or cluster.extraVolumeMounts" .mountPath) -}}
{{- end -}}
{{- if not (has .name $volumes) -}}
{{- include "opd.fail" (list (printf "mounts of %s pods" $role) "the pod has no volume of this name" "add it to cluster.extraVolumes" .name) -}}
{{- end -}}
{{- $paths = append $paths .mountPath -}}
{{- end -}}
{{- end -}}
{{- end -}}
