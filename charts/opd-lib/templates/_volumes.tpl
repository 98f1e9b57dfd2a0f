{{- /* Owns the volumes of Ray pods and where they are mounted. */ -}}

{{- define "opd.checkpointsClaim" -}}
{{- .Values.cluster.checkpoints.claim | default (printf "%s-checkpoints" .Release.Name) -}}
{{- end -}}

{{- define "opd.usesToolDatabase" -}}
{{- with .Values.cluster.toolDatabase -}}{{- if or (hasKey . "claim") (hasKey . "url") }}true{{ end -}}{{- end -}}
{{- end -}}

{{- /* `default` would swallow a false. */ -}}
{{- define "opd.isReadOnly" -}}
{{- hasKey . "readOnly" | ternary .readOnly true -}}
{{- end -}}

{{- /* (list $ group): /dev/shm is a memory volume of its own size; KubeRay would else make it as large as the limit. */ -}}
{{- define "opd.volumes" -}}
{{- $root := index . 0 -}}{{- $group := index . 1 -}}
{{- $cluster := $root.Values.cluster -}}
- name: experiment
  configMap:
    name: {{ $root.Release.Name }}
- name: scratch
  emptyDir:
    sizeLimit: {{ $group.scratchSize | quote }}
- name: home
  emptyDir:
    sizeLimit: 10Gi
- name: shared-mem
  emptyDir:
    medium: Memory
    sizeLimit: {{ mulf $group.shmGib 1024 | int64 }}Mi
- name: checkpoints
  {{- if $cluster.checkpoints.ephemeral }}
  emptyDir: {}
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ include "opd.checkpointsClaim" $root | quote }}
  {{- end }}
{{- with $cluster.cache.claim }}
- name: cache
  persistentVolumeClaim:
    claimName: {{ . | quote }}
{{- end }}
{{- range $index, $mount := $cluster.mounts }}
- name: mount-{{ $index }}
  persistentVolumeClaim:
    claimName: {{ $mount.claim | quote }}
    readOnly: {{ include "opd.isReadOnly" $mount }}
{{- end }}
{{- if include "opd.usesToolDatabase" $root }}
- name: tool-database
  {{- if hasKey $cluster.toolDatabase "claim" }}
  persistentVolumeClaim:
    claimName: {{ $cluster.toolDatabase.claim | quote }}
    readOnly: true
  {{- else }}
  emptyDir:
    sizeLimit: {{ $cluster.toolDatabase.size | quote }}
  {{- end }}
{{- end }}
{{- with $cluster.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "opd.volumeMounts" -}}
{{- $cluster := .Values.cluster -}}
- name: experiment
  mountPath: /etc/opd
  readOnly: true
- name: scratch
  mountPath: /tmp
- name: home
  mountPath: /home/opd
- name: shared-mem
  mountPath: /dev/shm
- name: checkpoints
  mountPath: {{ $cluster.checkpoints.path | quote }}
{{- if hasKey $cluster.cache "claim" }}
- name: cache
  mountPath: {{ $cluster.cache.path | quote }}
{{- end }}
{{- range $index, $mount := $cluster.mounts }}
- name: mount-{{ $index }}
  mountPath: {{ $mount.path | quote }}
  readOnly: {{ include "opd.isReadOnly" $mount }}
  {{- with $mount.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end }}
{{- if include "opd.usesToolDatabase" . }}
{{- range include "opd.databases" . | fromJsonArray }}
- name: tool-database
  mountPath: {{ . | quote }}
  readOnly: true
  {{- with $cluster.toolDatabase.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- with $cluster.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Fetches the tool database into the pod and verifies it before Ray starts. */ -}}
{{- define "opd.initContainers" -}}
{{- $database := .Values.cluster.toolDatabase | default dict -}}
{{- if hasKey $database "url" -}}
initContainers:
  - name: fetch-tool-database
    {{- include "opd.container" . | nindent 4 }}
    {{- include "opd.sideContainerSecurity" . | nindent 4 }}
    {{- include "opd.smallResources" . | nindent 4 }}
    command: [python, -m, opd.pods.fetch, {{ $database.url | quote }}, --sha256, {{ $database.sha256 | quote }}, --to, /database]
    env:
      {{- include "opd.env" (list . false) | nindent 6 }}
    {{- include "opd.envFrom" . | nindent 4 }}
    volumeMounts:
      - name: scratch
        mountPath: /tmp
      - name: home
        mountPath: /home/opd
      - name: tool-database
        mountPath: /database
{{- end -}}
{{- end -}}
