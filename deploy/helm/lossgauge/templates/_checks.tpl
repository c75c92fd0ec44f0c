{{/* What single values cannot show: values that contradict each other. Each message names the values. */}}
{{- define "lossgauge.checks" -}}
{{- if and .Values.job.enabled .Values.jobset.enabled (eq .Values.job.run .Values.jobset.run) -}}
{{- fail (printf "job.run and jobset.run are both %q: two jobs of one run are an attempt conflict; give them different names, or enable one" .Values.job.run) -}}
{{- end -}}
{{- if eq (int .Values.sidecar.ports.http) (int .Values.sidecar.ports.grpc) -}}
{{- fail (printf "sidecar.ports.http and sidecar.ports.grpc are both %d" (int .Values.sidecar.ports.http)) -}}
{{- end -}}
{{- if eq (int .Values.daemon.ports.http) (int .Values.daemon.ports.grpc) -}}
{{- fail (printf "daemon.ports.http and daemon.ports.grpc are both %d" (int .Values.daemon.ports.http)) -}}
{{- end -}}
{{- if and .Values.daemon.enabled .Values.sidecar.forwardTo -}}
{{- fail (printf "daemon.enabled is true and sidecar.forwardTo is %q: sidecars forward to one place; leave sidecar.forwardTo empty for the release's own daemon, or disable that" .Values.sidecar.forwardTo) -}}
{{- end -}}
{{- if and .Values.daemon.enabled (not .Values.forwardToken.secret) -}}
{{- fail "daemon.enabled is true and forwardToken.secret is empty: the daemon takes records only from sidecars that show a token; make a Secret with one and name it" -}}
{{- end -}}
{{- if and .Values.forwardToken.secret (not .Values.daemon.enabled) (not .Values.sidecar.forwardTo) -}}
{{- fail (printf "forwardToken.secret is %q, but nothing is forwarded: enable the daemon, or set sidecar.forwardTo" .Values.forwardToken.secret) -}}
{{- end -}}
{{- if and .Values.sidecar.native (semverCompare "<1.28.0-0" .Capabilities.KubeVersion.Version) (or .Values.job.enabled .Values.jobset.enabled) -}}
{{- fail (printf "sidecar.native is true, but Kubernetes %s has no native sidecars: set sidecar.native to false" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.jobset.enabled (not (.Capabilities.APIVersions.Has "jobset.x-k8s.io/v1alpha2/JobSet")) -}}
{{- fail "jobset.enabled is true, but this cluster has no JobSet (jobset.x-k8s.io/v1alpha2): install JobSet, or set jobset.enabled to false" -}}
{{- end -}}
{{- end }}
