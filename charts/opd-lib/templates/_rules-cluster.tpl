{{- /* Owns the rules between the keys of `cluster`: what KubeRay or the kubelet would only notice in a running cluster. */ -}}

{{- define "opd.checkImage" -}}
{{- $image := .Values.cluster.image -}}
{{- $ref := $image.ref | default "" -}}
{{- if not $ref -}}
{{- include "opd.refuse" (dict "key" "cluster.image.ref" "value" $ref
  "rule" "the image is required and has no default"
  "fix" "run `images/build.sh trainer --push REGISTRY`: it prints the reference to use, with its digest") -}}
{{- end -}}
{{- range $key, $used := dict "cluster.image.ref" $ref "cluster.submitter.image" (.Values.cluster.submitter.image | default $ref) -}}
{{- if not (or $image.local (regexMatch "@sha256:[0-9a-f]{64}$" $used)) -}}
{{- include "opd.refuse" (dict "key" $key "value" $used
  "rule" "an image is named by its digest, so that every pod and every attempt runs the same one"
  "fix" "use the reference that `images/build.sh trainer --push REGISTRY` prints, or cluster.image.local: true for an image loaded onto the nodes") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkLifecycle" -}}
{{- $cluster := .Values.cluster -}}
{{- if hasKey $cluster "clusterSelector" -}}
{{- include "opd.refuse" (dict "key" "cluster.clusterSelector" "value" $cluster.clusterSelector
  "rule" "a run makes its own Ray cluster: volumes, environment, network policy, retries, saves before the end and clean-up are all of its pods, and an existing cluster has none of them"
  "fix" "remove it; to wait for room, set cluster.queue") -}}
{{- end -}}
{{- range $end := list "succeeded" "failed" -}}
{{- $ttl := index $cluster.cleanUp $end -}}
{{- if or (gt (int64 $ttl.workersSeconds) (int64 $ttl.clusterSeconds)) (gt (int64 $ttl.clusterSeconds) (int64 $ttl.selfSeconds)) -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.cleanUp.%s" $end) "value" $ttl
  "rule" "KubeRay demands workersSeconds <= clusterSeconds <= selfSeconds"
  "fix" "let each stage last at least as long as the one before") -}}
{{- end -}}
{{- end -}}
{{- $deadlines := $cluster.deadlines -}}
{{- if ne (hasKey $deadlines "activeSeconds") (hasKey $deadlines "preRunningSeconds") -}}
{{- include "opd.refuse" (dict "key" "cluster.deadlines" "value" $deadlines
  "rule" "the trainer finds the time to save from both deadlines: give both or none"
  "fix" "set activeSeconds and preRunningSeconds") -}}
{{- end -}}
{{- if hasKey $deadlines "activeSeconds" -}}
{{- $least := add (int64 $deadlines.preRunningSeconds) (int64 $cluster.stop.saveSeconds) -}}
{{- if le (int64 $deadlines.activeSeconds) $least -}}
{{- include "opd.refuse" (dict "key" "cluster.deadlines.activeSeconds" "value" $deadlines.activeSeconds
  "rule" (printf "it counts from the start, so it must exceed deadlines.preRunningSeconds + stop.saveSeconds = %d, or no time is left to train" $least)
  "fix" (printf "use more than %d" $least)) -}}
{{- end -}}
{{- end -}}
{{- if and (hasSuffix "/multikueue" ($cluster.managedBy | default "")) (ne (dig "queue" "manager" "" $cluster) "kueue") -}}
{{- include "opd.refuse" (dict "key" "cluster.managedBy" "value" $cluster.managedBy
  "rule" "MultiKueue takes runs out of a queue of Kueue, and nobody else would start this one"
  "fix" "set cluster.queue: {manager: kueue, name: ...}, or remove the key") -}}
{{- end -}}
{{- with $cluster.queue -}}
{{- if and (eq .manager "kueue") (ne $cluster.lifecycle "suspendable") -}}
{{- include "opd.refuse" (dict "key" "cluster.lifecycle" "value" $cluster.lifecycle
  "rule" "Kueue suspends runs, which KubeRay refuses for a RayJob with deletion rules"
  "fix" "set cluster.lifecycle: suspendable") -}}
{{- end -}}
{{- if and (eq .manager "volcano") (ne $cluster.submissionMode "K8sJobMode") -}}
{{- include "opd.refuse" (dict "key" "cluster.submissionMode" "value" $cluster.submissionMode
  "rule" "KubeRay writes Volcano's gang metadata in K8sJobMode only"
  "fix" "set cluster.submissionMode: K8sJobMode") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkAccess" -}}
{{- $cluster := .Values.cluster -}}
{{- $account := $cluster.serviceAccount -}}
{{- if and (hasKey $account "name") $account.annotations -}}
{{- include "opd.refuse" (dict "key" "cluster.serviceAccount.annotations" "value" $account.annotations
  "rule" (printf "they are for the run's own account; %s is another's" $account.name)
  "fix" "annotate that account itself, or remove cluster.serviceAccount.name") -}}
{{- end -}}
{{- if not (or $cluster.networkPolicy.enabled $cluster.networkPolicy.acceptOpenNetwork) -}}
{{- include "opd.refuse" (dict "key" "cluster.networkPolicy.enabled" "value" false
  "rule" "Ray's token does not guard the ports on which verl, TransferQueue and torch exchange pickled objects: without a policy every pod that reaches them runs code in the run"
  "fix" "leave it true; or, where something else keeps other pods away, set cluster.networkPolicy.acceptOpenNetwork: true") -}}
{{- end -}}
{{- if not (or $cluster.auth.token $cluster.networkPolicy.enabled) -}}
{{- include "opd.refuse" (dict "key" "cluster.auth.token" "value" false
  "rule" "Ray runs any code that reaches it: without token and network policy, every pod of the cluster could"
  "fix" "leave cluster.auth.token or cluster.networkPolicy.enabled true") -}}
{{- end -}}
{{- if and $cluster.auth.token (semverCompare "<2.52.0" (include "opd.rayVersion" .)) -}}
{{- include "opd.refuse" (dict "key" "cluster.rayVersion" "value" (include "opd.rayVersion" .)
  "rule" "token access needs Ray 2.52 or newer"
  "fix" "use an image with a newer Ray") -}}
{{- end -}}
{{- $ours := include "opd.experimentEnv" . | fromJson -}}
{{- range $index, $item := $cluster.extraEnv -}}
{{- if hasKey $ours $item.name -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.extraEnv.%d" $index) "value" $item.name
  "rule" "the experiment sets this variable already, by env or store, for every process of the run"
  "fix" "keep one of the two") -}}
{{- end -}}
{{- if eq (hasKey $item "value") (hasKey $item "valueFrom") -}}
{{- include "opd.refuse" (dict "key" (printf "cluster.extraEnv.%d" $index) "value" $item.name
  "rule" "a variable has either a value or a valueFrom"
  "fix" "keep one of the two") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "opd.checkStorage" -}}
{{- $cluster := .Values.cluster -}}
{{- $checkpoints := $cluster.checkpoints -}}
{{- $url := dig "store" "url" "" (omit .Values "cluster") -}}
{{- if $checkpoints.ephemeral -}}
{{- if hasKey $checkpoints "claim" -}}
{{- include "opd.refuse" (dict "key" "cluster.checkpoints.claim" "value" $checkpoints.claim
  "rule" "an ephemeral run has no claim"
  "fix" "remove claim, or ephemeral") -}}
{{- end -}}
{{- if or (not (contains "://" $url)) (hasPrefix "file://" $url) -}}
{{- include "opd.refuse" (dict "key" "store.url" "value" $url
  "rule" "without a claim only an object store keeps results"
  "fix" "set store.url to s3://..., or cluster.checkpoints.ephemeral: false") -}}
{{- end -}}
{{- end -}}
{{- $taken := dict $checkpoints.path "cluster.checkpoints.path" "/tmp" "the scratch volume" "/dev/shm" "shared memory" "/etc/opd" "the experiment" "/home/opd" "the home folder" -}}
{{- if hasKey $cluster.cache "claim" -}}
{{- include "opd.takePath" (list $taken "cluster.cache.path" $cluster.cache.path) -}}
{{- end -}}
{{- range $index, $mount := $cluster.mounts -}}
{{- include "opd.takePath" (list $taken (printf "cluster.mounts.%d.path" $index) $mount.path) -}}
{{- end -}}
{{- end -}}

{{- /* (list taken key path): two volumes cannot share a mount path. */ -}}
{{- define "opd.takePath" -}}
{{- $taken := index . 0 -}}{{- $key := index . 1 -}}{{- $path := index . 2 -}}
{{- if hasKey $taken $path -}}
{{- include "opd.refuse" (dict "key" $key "value" $path
  "rule" (printf "%s is mounted there already" (index $taken $path))
  "fix" "choose another path") -}}
{{- end -}}
{{- $_ := set $taken $path $key -}}
{{- end -}}
