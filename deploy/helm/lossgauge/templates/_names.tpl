{{- define "lossgauge.name" -}}
{{- printf "%s-lossgauge" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "lossgauge.labels" -}}
app.kubernetes.io/name: lossgauge
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "lossgauge.daemonLabels" -}}
app.kubernetes.io/name: lossgauge
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: daemon
{{- end }}

{{- define "lossgauge.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end }}

{{/* "true" where an object of the Prometheus operator is to be made. (dict "context" . "switch" VALUE "kind" KIND "name" NAME) */}}
{{- define "lossgauge.wants" -}}
{{- $has := .context.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) -}}
{{- if and (eq (toString .switch) "true") (not $has) -}}
{{- fail (printf "%s.enabled is true, but this cluster has no %s (monitoring.coreos.com/v1): install the Prometheus operator's definitions, or set %s.enabled to auto or false" .name .kind .name) -}}
{{- end -}}
{{- if and $has (ne (toString .switch) "false") -}}true{{- end -}}
{{- end }}
