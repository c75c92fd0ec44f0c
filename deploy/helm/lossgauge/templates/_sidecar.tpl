{{/*
lossgauged beside a trainer, as parts that any pod template can take: "lossgauge.sidecar" (the container), "lossgauge.volumes", "lossgauge.trainer.mounts",
"lossgauge.trainer.env", "lossgauge.trainer.probes". Each takes (dict "context" . "run" RUN).

 - Trainer and sidecar share one bounded memory volume with the rings. The sidecar may only read it.
 - Both run as the pod's one unprivileged user, so that ring files of mode 0640 are readable without a common group.
 - The kubelet asks the pod's address: on loopback the probe would not be heard. The network policy says who else may.
*/}}
{{- define "lossgauge.lockedDown" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The token of forwarding, in daemon and sidecars: each takes the chart's context. */}}
{{- define "lossgauge.tokenFile" -}}
/etc/lossgauge/token/{{ .Values.forwardToken.key }}
{{- end }}
{{- define "lossgauge.tokenMount" -}}
- name: lossgauge-token
  mountPath: /etc/lossgauge/token
  readOnly: true
{{- end }}
{{- define "lossgauge.tokenVolume" -}}
- name: lossgauge-token
  secret:
    secretName: {{ .Values.forwardToken.secret | quote }}
    # lossgauged refuses one that everybody may read, as it would be by default; fsGroup makes the group ours.
    defaultMode: 0440
{{- end }}

{{- define "lossgauge.sidecar" -}}
{{- $values := .context.Values.sidecar -}}
name: lossgauged
image: {{ include "lossgauge.image" .context }}
imagePullPolicy: {{ .context.Values.image.pullPolicy }}
{{- if $values.native }}
restartPolicy: Always
{{- end }}
command: [/usr/bin/lossgauged, sidecar]
args:
  - --ring_dir={{ $values.ringDir }}
  - --state_dir=/var/lib/lossgauge
  - --http_listen=0.0.0.0:{{ $values.ports.http }}
  - --grpc_listen=0.0.0.0:{{ $values.ports.grpc }}
  - --log_format=json
  {{- if .context.Values.daemon.enabled }}
  - --forward_to={{ include "lossgauge.name" .context }}.{{ .context.Release.Namespace }}.svc:{{ .context.Values.daemon.ports.grpc }}
  {{- else if $values.forwardTo }}
  - --forward_to={{ $values.forwardTo }}
  {{- end }}
  {{- if .context.Values.forwardToken.secret }}
  - --forward_token_file={{ include "lossgauge.tokenFile" .context }}
  {{- end }}
  {{- if not $values.native }}
  - --exit_after_end
  {{- end }}
  {{- range $values.extraArgs }}
  - {{ . | quote }}
  {{- end }}
ports:
  - name: lossgauge-http
    containerPort: {{ $values.ports.http }}
  - name: lossgauge-grpc
    containerPort: {{ $values.ports.grpc }}
startupProbe:
  httpGet: {path: /-/ready, port: lossgauge-http}
  periodSeconds: 1
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /-/healthy, port: lossgauge-http}
  periodSeconds: 30
  failureThreshold: 3
resources:
  {{- toYaml $values.resources | nindent 2 }}
securityContext:
  {{- include "lossgauge.lockedDown" . | nindent 2 }}
volumeMounts:
  - name: lossgauge-rings
    mountPath: {{ $values.ringDir }}
    readOnly: true
  - name: lossgauge-state
    mountPath: /var/lib/lossgauge
  {{- if .context.Values.forwardToken.secret }}
  {{- include "lossgauge.tokenMount" .context | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "lossgauge.volumes" -}}
- name: lossgauge-rings
  emptyDir:
    medium: Memory
    sizeLimit: {{ .context.Values.sidecar.ringSize }}
- name: lossgauge-state
  emptyDir:
    sizeLimit: {{ .context.Values.sidecar.stateSize }}
{{- if .context.Values.forwardToken.secret }}
{{ include "lossgauge.tokenVolume" .context }}
{{- end }}
{{- end }}

{{- define "lossgauge.trainer.mounts" -}}
- name: lossgauge-rings
  mountPath: {{ .context.Values.sidecar.ringDir }}
{{- end }}

{{- define "lossgauge.trainer.env" -}}
- name: LOSSGAUGE_RING_DIR
  value: {{ .context.Values.sidecar.ringDir }}
- name: LOSSGAUGE_RUN
  value: {{ .run | quote }}
{{- end }}

{{- define "lossgauge.trainer.probes" -}}
{{- $probe := .context.Values.restartProbe -}}
{{- if $probe.enabled -}}
# Until the restarted trainer has opened its gauge the verdict is still the one that restarted it: liveness begins only then.
startupProbe:
  grpc:
    port: {{ .context.Values.sidecar.ports.grpc }}
    service: {{ printf "run/%s/restart" .run | quote }}
  periodSeconds: 10
  failureThreshold: {{ $probe.startupFailureThreshold }}
livenessProbe:
  grpc:
    port: {{ .context.Values.sidecar.ports.grpc }}
    service: {{ printf "run/%s/restart" .run | quote }}
  initialDelaySeconds: {{ $probe.initialDelaySeconds }}
  periodSeconds: {{ $probe.periodSeconds }}
  failureThreshold: {{ $probe.failureThreshold }}
{{- end -}}
{{- end }}

{{/* A whole pod: (dict "context" . "run" RUN "trainer" VALUES "env" EXTRA). restartPolicy Never: a restart of one rank fails the pod, and its controller makes
new ones, with a name of their own for the attempt. */}}
{{- define "lossgauge.trainerPod" -}}
metadata:
  labels:
    {{- include "lossgauge.labels" .context | nindent 4 }}
    app.kubernetes.io/component: trainer
    lossgauge: "true"
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 60
  securityContext:
    {{- toYaml .context.Values.podSecurityContext | nindent 4 }}
  {{- with .context.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .context.Values.sidecar.native }}
  initContainers:
    - {{- include "lossgauge.sidecar" . | nindent 6 }}
  {{- end }}
  containers:
    - name: trainer
      image: {{ .trainer.image | quote }}
      command: {{ toJson .trainer.command }}
      env:
        {{- include "lossgauge.trainer.env" . | nindent 8 }}
        {{- toYaml .env | nindent 8 }}
        {{- with .trainer.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- include "lossgauge.trainer.probes" . | nindent 6 }}
      resources:
        {{- toYaml .trainer.resources | nindent 8 }}
      securityContext:
        {{- include "lossgauge.lockedDown" . | nindent 8 }}
      volumeMounts:
        {{- include "lossgauge.trainer.mounts" . | nindent 8 }}
        - name: scratch
          mountPath: /tmp
    {{- if not .context.Values.sidecar.native }}
    - {{- include "lossgauge.sidecar" . | nindent 6 }}
    {{- end }}
  volumes:
    {{- include "lossgauge.volumes" . | nindent 4 }}
    - name: scratch
      emptyDir: {}
{{- end }}
