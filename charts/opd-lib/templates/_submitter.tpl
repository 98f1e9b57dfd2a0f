{{- /* Owns the submitter of K8sJobMode: KubeRay's own has no security settings, and takes a log stream that closes in
     mid-run for the end of the job. Ours follows until the Ray job has ended and submits again where a lost head took
     the job with it. KubeRay adds the address, the submission id and the token to its environment. */ -}}

{{- define "opd.submitter" -}}
{{- $submitter := .Values.cluster.submitter -}}
metadata:
  labels:
    {{- include "opd.podLabels" (list . "submitter" $submitter) | nindent 4 }}
  {{- with $submitter.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "opd.withPodSpec" (list . "submitter" (include "opd.submitterPodSpec" .)) | nindent 2 }}
{{- end -}}

{{- define "opd.submitterPodSpec" -}}
{{- $submitter := .Values.cluster.submitter -}}
{{- include "opd.podSpec" (list . $submitter) }}
restartPolicy: Never
containers:
  - name: submitter
    image: {{ $submitter.image | default .Values.cluster.image.ref | quote }}
    {{- include "opd.pullPolicy" . | nindent 4 }}
    {{- include "opd.sideContainerSecurity" . | nindent 4 }}
    command: [python, -m, opd.pods.submit, --]
    args: {{ include "opd.entrypoint" . | splitList " " | toJson }}
    env:
      {{- include "opd.sideEnv" (list . "/home/opd") | nindent 6 }}
    resources:
      requests:
        {{- toYaml $submitter.requests | nindent 8 }}
      limits:
        {{- toYaml $submitter.limits | nindent 8 }}
    volumeMounts:
      - name: home
        mountPath: /home/opd
      - name: scratch
        mountPath: /tmp
volumes:
  - name: home
    emptyDir:
      sizeLimit: 1Gi
  - name: scratch
    emptyDir:
      sizeLimit: 1Gi
{{- end -}}
