{{- /* How a chart refuses values: what, by which rule, how to mend it; nothing is rendered then. */ -}}

{{- /* (dict "key" "cluster.image.ref" "value" ... "rule" "..." "fix" "..."); a key without a value has no such line. `under` is the
     stage, `stages.NAME.`, whose key it is. */ -}}
{{- define "opd.refuse" -}}
{{- $value := kindIs "invalid" .value | ternary "" (printf "    value: %s\n" (kindIs "string" .value | ternary (quote .value) (toJson .value))) -}}
{{- fail (printf "\n\n  %s%s\n%s    rule:  %s\n    fix:   %s\n" (.under | default "") .key $value .rule .fix) -}}
{{- end -}}

{{- /* Every rule, once per release. `helm lint` of a chart alone goes on after a refusal, with values that are no experiment. */ -}}
{{- define "opd.check" -}}
{{- include "opd.checkRelease" . -}}
{{- if not (hasKey .Values "kind") -}}
{{- include "opd.refuse" (dict "key" "kind" "value" nil
  "rule" "missing property 'kind': the values are an experiment, and every experiment says its kind"
  "fix" (printf "give the experiment's file (-f exp.yaml); it begins with `kind: %s`" .Chart.Name)) -}}
{{- else -}}
{{- include "opd.checkSecrets" (list (include "opd.constants" . | fromJson) "" (omit .Values "opd-lib")) -}}
{{- include "opd.checkPodSpecs" . -}}
{{- include "opd.checkImages" . -}}
{{- include "opd.checkExperimentEnv" . -}}
{{- include "opd.checkMountPaths" . -}}
{{- include "opd.checkToolVolume" . -}}
{{- include "opd.checkOverrides" . -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkImages" -}}
{{- $image := .Values.cluster.image -}}
{{- range $key, $ref := dict "cluster.image.ref" ($image.ref | default "") "cluster.submitter.image" (.Values.cluster.submitter.image | default $image.ref | default "") -}}
{{- if not $ref -}}
{{- include "opd.refuse" (dict "key" $key "value" nil
  "rule" "the image is required and has no default"
  "fix" "run `images/build.sh trainer --push REGISTRY`: it prints the reference to use, with its digest") -}}
{{- else if not (or $image.local (regexMatch "@sha256:[0-9a-f]{64}$" $ref)) -}}
{{- include "opd.refuse" (dict "key" $key "value" $ref
  "rule" "an image is named by its digest, so that every pod and every attempt runs the same one"
  "fix" "use the reference that `images/build.sh trainer --push REGISTRY` prints, or cluster.image.local: true for an image loaded onto the nodes") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkRelease" -}}
{{- $constants := include "opd.constants" . | fromJson -}}
{{- if .Release.IsUpgrade -}}
{{- include "opd.refuse" (dict "key" "helm upgrade" "value" .Release.Name
  "rule" "KubeRay ignores changes to the cluster of a live RayJob: one release is one run"
  "fix" "install under another name, or uninstall and install again to resume from the newest checkpoint") -}}
{{- end -}}
{{- if or (gt (len .Release.Name) (int $constants.maxNameChars)) (not (regexMatch $constants.namePattern .Release.Name)) -}}
{{- include "opd.refuse" (dict "key" "release name" "value" .Release.Name
  "rule" (printf "it names the RayJob: DNS-1035 (lower-case letters, digits and -, a letter first), at most %d characters; KubeRay would park any other name as ValidationFailed for good" (int $constants.maxNameChars))
  "fix" "choose another release name") -}}
{{- end -}}
{{- if hasKey .Values "matrix" -}}
{{- include "opd.refuse" (dict "key" "matrix" "value" .Values.matrix
  "rule" "a matrix is a sweep of experiments; one release takes one"
  "fix" "render it with `opdctl render` and install the results") -}}
{{- end -}}
{{- end -}}

{{- /* (list constants path tree): literal secrets anywhere in the values, as opd.config refuses them. */ -}}
{{- define "opd.checkSecrets" -}}
{{- $constants := index . 0 -}}{{- $path := index . 1 -}}{{- $tree := index . 2 -}}
{{- $problem := dict "value" "<redacted>"
  "rule" "a secret is never written into a spec: it would end in ConfigMaps, logs and the store"
  "fix" "refer to an existing Secret (cluster.secrets, cluster.envFrom)" -}}
{{- if kindIs "map" $tree -}}
{{- $isSecret := and (kindIs "string" $tree.name) (regexMatch $constants.secretName (toString $tree.name)) -}}
{{- range $key, $value := $tree -}}
{{- $child := ne $path "" | ternary (printf "%s.%s" $path $key) $key -}}
{{- $isNested := or (kindIs "map" $value) (kindIs "slice" $value) -}}
{{- if and (not $isNested) (or (regexMatch $constants.secretName $key) (and $isSecret (eq $key "value"))) -}}
{{- include "opd.refuse" (set $problem "key" $child) -}}
{{- end -}}
{{- if or $isNested (kindIs "string" $value) -}}
{{- include "opd.checkSecrets" (list $constants $child $value) -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "slice" $tree -}}
{{- range $index, $value := $tree -}}
{{- include "opd.checkSecrets" (list $constants (printf "%s.%d" $path $index) $value) -}}
{{- end -}}
{{- else if and (kindIs "string" $tree) (regexMatch $constants.urlCredentials $tree) -}}
{{- include "opd.refuse" (set $problem "key" $path) -}}
{{- end -}}
{{- end -}}
