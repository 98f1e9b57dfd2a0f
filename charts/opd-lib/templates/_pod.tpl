{{- /* What pods share: security (Pod Security `restricted`), placement, environment, volumes, and the merge of podSpec. */ -}}

{{- /* (list $ role group text): a pod's spec: what every pod has, `text`, and over both the group's podSpec. */ -}}
{{- define "opd.podSpec" -}}
{{- $root := index . 0 -}}{{- $role := index . 1 -}}{{- $group := index . 2 -}}
{{- $text := printf "%s\n%s" (include "opd.everyPod" (list $root $group)) (index . 3) -}}
{{- with $group.podSpec -}}
{{- $text = (include "opd.merged" (list "" (fromYaml $text) .) | fromJson).value | toYaml -}}
{{- end -}}
{{- include "opd.refusePod" (list $role (fromYaml $text)) -}}
{{- $text -}}
{{- end -}}

{{- /* (list $ group): no API token, and no service links: a Service `master` would inject MASTER_PORT=tcp://... Keys of the
     group that are no key of ours are fields of a pod's spec. */ -}}
{{- define "opd.everyPod" -}}
{{- $cluster := (index . 0).Values.cluster -}}{{- $security := $cluster.podSecurity -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- range $key := list "runAsUser" "runAsGroup" "fsGroup" }}
  {{- with index $security $key }}
  {{ $key }}: {{ int64 . }}
  {{- end }}
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $cluster.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- $fields := merge (deepCopy (index . 1)) (dict "serviceAccountName" ($cluster.serviceAccount.name | default (include "opd.run" (index . 0)))) }}
{{- $ours := list "requests" "limits" "labels" "annotations" "podSpec" "image" "objectStoreGib" "shmGib" "cpus" "ranks" "onGpu" }}
{{- range $key, $value := $fields }}
{{- if and $value (not (has $key $ours)) }}
{{ dict $key $value | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* (list $ image): image and security of a container. KubeRay copies both into its own init container. */ -}}
{{- define "opd.container" -}}
{{- $image := (index . 0).Values.cluster.image -}}
image: {{ index . 1 | default $image.ref | quote }}
imagePullPolicy: {{ $image.local | ternary "Never" "IfNotPresent" }}
securityContext:
  {{- include "opd.containerSecurity" . | nindent 2 }}
{{- end -}}

{{- define "opd.containerSecurity" -}}
runAsNonRoot: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* Variables that the experiment sets in every process, as JSON: `env` and the store's server. With a proxy NO_PROXY holds
     the addresses of the cluster, which no proxy serves (row a4). */ -}}
{{- define "opd.experimentEnv" -}}
{{- $env := dict -}}{{- $store := .Values.store | default dict -}}
{{- if or .Values.env.HTTP_PROXY .Values.env.HTTPS_PROXY .Values.env.http_proxy .Values.env.https_proxy -}}
{{- $_ := set $env "NO_PROXY" ".svc,.cluster.local,localhost,127.0.0.1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16" -}}
{{- end -}}
{{- range $key, $name := dict "endpoint" "AWS_ENDPOINT_URL_S3" "region" "AWS_DEFAULT_REGION" "addressing" "OPD_S3_ADDRESSING" -}}
{{- with index $store $key -}}{{- $_ := set $env $name . -}}{{- end -}}
{{- end -}}
{{- range $name, $value := .Values.env -}}{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $env $name $value -}}{{- end -}}{{- end -}}
{{- toJson $env -}}
{{- end -}}

{{- /* (list $ onGpu more): the variables of Ray's containers, sorted, each name once: the experiment's over ours, extraEnv last. NVIDIA's
     runtime shows every GPU of the node to an image that says `all`, so a container without GPUs says void. Ray signals all
     processes of a job: the launcher alone reacts to SIGINT, and the wait is the time to save. A new head
     knows nothing of the lost one, so a worker's pod ends after 30 s without its head. Ray waits for 60. */ -}}
{{- define "opd.env" -}}
{{- $root := index . 0 -}}{{- $cluster := $root.Values.cluster -}}{{- $run := include "opd.run" $root -}}
{{- $save := $cluster.stop.saveSeconds | int64 | toString -}}
{{- $cache := empty $cluster.cache.claim | ternary (printf "%s/cache" $cluster.checkpoints.path) $cluster.cache.path -}}
{{- $own := dict "HOME" "/home/opd" "HF_HOME" (printf "%s/huggingface" $cache) "OPD_CACHE_DIR" $cache
  "RAY_USAGE_STATS_ENABLED" "0" "RAY_gcs_rpc_server_reconnect_timeout_s" "30" "RAY_JOB_STOP_WAIT_TIME_S" $save "RAY_JOB_STOP_SIGNAL" "SIGINT" "OPD_SAVE_SECONDS" $save
  "OPD_STARTS_PER_CLUSTER" ($cluster.retries.startsPerCluster | int64 | toString)
  "OPD_CHART_VERSION" $root.Chart.Version "OPD_IMAGE" $cluster.image.ref -}}
{{- if has "wandb" (($root.Values.trainer | default dict).loggers | default list) -}}
{{- $own = merge (dict "WANDB_RUN_ID" $run "WANDB_RESUME" "allow") $own -}}{{- /* one W&B run over all attempts */ -}}
{{- end -}}
{{- $own = merge (deepCopy (index . 2)) $own -}}
{{- if not (index . 1) -}}{{- $_ := set $own "NVIDIA_VISIBLE_DEVICES" "void" -}}{{- end -}}
{{- $own = merge (include "opd.experimentEnv" $root | fromJson) $own -}}
{{- $entries := dict -}}
{{- range $key, $name := dict "huggingFace" "HF_TOKEN" "wandb" "WANDB_API_KEY" "mlflow" "MLFLOW_TRACKING_TOKEN" "teacher" "OPD_TEACHER_API_KEY" -}}
{{- with index $cluster.secrets $key -}}
{{- $_ := set $entries $name (dict "name" $name "valueFrom" (dict "secretKeyRef" (dict "name" .secret "key" .key))) -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := $own -}}{{- $_ := set $entries $name (dict "name" $name "value" $value) -}}{{- end -}}
{{- range $cluster.extraEnv -}}{{- $entries = omit $entries .name -}}{{- end -}}
{{- $list := list -}}
{{- range $entries -}}{{- $list = append $list . -}}{{- end -}}
env:
  {{- concat $list $cluster.extraEnv | toYaml | nindent 2 }}
{{- $sources := $cluster.envFrom -}}
{{- with $cluster.secrets.store -}}{{- $sources = prepend $sources (dict "secretRef" (dict "name" .)) -}}{{- end -}}
{{- with $sources }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* A name of this installation, one for all pods of the RayJob. A `fatal.json` holds for the retries of this RayJob alone
     (row a3). Helm without a cluster renders the same twice, as Argo CD demands: there a changed file is another installation. */ -}}
{{- define "opd.install" -}}
{{- if lookup "v1" "ConfigMap" .Release.Namespace "kube-root-ca.crt" }}{{ uuidv4 }}{{ else }}{{ printf "%s %s" (include "opd.experiment" .) .Values.cluster.image.ref | sha256sum }}{{ end -}}
{{- end -}}

{{- /* (list $ group claim): the volumes of Ray pods; without a claim the run's volume is an empty folder. KubeRay would make
     /dev/shm as large as the memory limit. */ -}}
{{- define "opd.volumes" -}}
{{- $root := index . 0 -}}{{- $group := index . 1 -}}{{- $cluster := $root.Values.cluster -}}
- {name: scratch, emptyDir: {sizeLimit: "50Gi"}}
- {name: home, emptyDir: {sizeLimit: 10Gi}}
- {name: shared-mem, emptyDir: {medium: Memory, sizeLimit: {{ mulf $group.shmGib 1024 | int64 }}Mi}}
- name: checkpoints
  {{- if index . 2 }}
  persistentVolumeClaim: {claimName: {{ index . 2 | quote }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- with $cluster.cache.claim }}
- {name: cache, persistentVolumeClaim: {claimName: {{ . | quote }}}}
{{- end }}
{{- range $index, $mount := $cluster.mounts }}
- {name: mount-{{ $index }}, persistentVolumeClaim: {claimName: {{ $mount.claim | quote }}, readOnly: {{ ne $mount.readOnly false }}}}
{{- end }}
{{- with $cluster.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "opd.mounts" -}}
{{- $cluster := .Values.cluster -}}
- {name: experiment, mountPath: /etc/opd, readOnly: true}
- {name: scratch, mountPath: /tmp}
- {name: home, mountPath: /home/opd}
- {name: shared-mem, mountPath: /dev/shm}
- {name: checkpoints, mountPath: {{ $cluster.checkpoints.path | quote }}}
{{- if $cluster.cache.claim }}
- {name: cache, mountPath: {{ $cluster.cache.path | quote }}}
{{- end }}
{{- range $index, $mount := $cluster.mounts }}
- {name: mount-{{ $index }}, mountPath: {{ $mount.path | quote }}, readOnly: {{ ne $mount.readOnly false }}{{ with $mount.subPath }}, subPath: {{ quote . }}{{ end }}}
{{- end }}
{{- with $cluster.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The path of a mount, the name of another item of a list; empty for a toleration or a spread constraint. */ -}}
{{- define "opd.itemName" -}}
{{- if kindIs "map" . -}}{{ .mountPath | default .name | default "" }}{{- end -}}
{{- end -}}

{{- /* (list key ours theirs): a tree, theirs over ours, as JSON (row a5). Maps merge, and a null drops our field. Items
     of a list go by their name, a mount by its path. Containers merge, other items are replaced. Items without a name are added,
     as two tolerations of one key are. A new container is as restricted as ours. */ -}}
{{- define "opd.merged" -}}
{{- $ours := index . 1 -}}{{- $theirs := index . 2 -}}
{{- if and (kindIs "map" $ours) (kindIs "map" $theirs) -}}
{{- $out := deepCopy $ours -}}
{{- range $key, $value := $theirs -}}
{{- if kindIs "invalid" $value -}}{{- $out = omit $out $key -}}
{{- else if hasKey $out $key -}}{{- $_ := set $out $key (include "opd.merged" (list $key (get $out $key) $value) | fromJson).value -}}
{{- else -}}{{- $_ := set $out $key $value -}}{{- end -}}
{{- end -}}
{{- $theirs = $out -}}
{{- else if and (kindIs "slice" $ours) (kindIs "slice" $theirs) -}}
{{- $key := index . 0 -}}
{{- $isContainer := has $key (list "containers" "initContainers") -}}
{{- $out := $ours -}}
{{- range $item := $theirs -}}
{{- $name := include "opd.itemName" $item -}}
{{- $next := list -}}{{- $isNew := true -}}
{{- range $own := $out -}}
{{- if and $name (eq $name (include "opd.itemName" $own)) -}}
{{- $isNew = false -}}
{{- $own = $isContainer | ternary (include "opd.merged" (list "" $own $item) | fromJson).value $item -}}
{{- end -}}
{{- $next = append $next $own -}}
{{- end -}}
{{- if $isNew -}}
{{- if and $isContainer (not $item.securityContext) -}}{{- $item = set (deepCopy $item) "securityContext" (include "opd.containerSecurity" . | fromYaml) -}}{{- end -}}
{{- $next = append $next $item -}}
{{- end -}}
{{- $out = $next -}}
{{- end -}}
{{- $theirs = $out -}}
{{- end -}}
{{- dict "value" $theirs | toJson -}}
{{- end -}}
