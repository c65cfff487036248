{{/* The labels by which everything finds the pods. Not the chart's version: KubeRay makes a second cluster after a change of a pod's label. */}}
{{- define "ensemble.labels" -}}
app.kubernetes.io/name: ensemble
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Where the head's state is kept; empty if it is not. */}}
{{- define "ensemble.redis" -}}
{{- if and .Values.redis.address .Values.redis.deploy }}
{{- fail "redis.address names a Redis, and redis.deploy asks for another one: choose one of them" }}
{{- end }}
{{- .Values.redis.address | default (ternary (printf "%s-redis:6379" .Release.Name) "" .Values.redis.deploy) }}
{{- end }}

{{/* The Secret with the clients' keys; empty if everybody may ask. */}}
{{- define "ensemble.keys" -}}
{{- if and .Values.keys.file .Values.keys.secret }}
{{- fail "keys.file and keys.secret are both set: leave one of them empty" }}
{{- else if .Values.keys.secret }}
{{- .Values.keys.secret }}
{{- else if .Values.keys.file }}
{{- printf "%s-keys" .Release.Name }}
{{- else if .Values.keys.required }}
{{- fail "no client would have a key: run `ensemble keys add NAME --file keys`, and give Helm --set-file keys.file=keys (or --set keys.secret=NAME, or --set keys.required=false to answer everybody)" }}
{{- end }}
{{- end }}

{{/* Serve's configuration: what is the same for all, and `args`. */}}
{{- define "ensemble.serve" -}}
{{- $args := deepCopy .Values.args }}
{{- if include "ensemble.keys" . }}
{{- $_ := set $args "access" (merge (dict "keys" "/etc/ensemble/keys") ($args.access | default dict)) }}
{{- end }}
{{- with .Values.models.repository | default (ternary "/models" "" (ne .Values.models.claim "")) }}
{{- $_ := set $args "model_repository" . }}
{{- end -}}
# HAProxy, in the container `front` of each worker, takes the place of Serve's proxy.
proxy_location: Disabled
http_options: {host: 0.0.0.0}
logging_config: {enable_access_log: false, encoding: JSON}
applications:
  - name: ensemble
    route_prefix: /
    import_path: graph.app:build
    args:
      {{- toYaml $args | nindent 6 }}
    deployments:
      # One replica per worker.
      - name: Ingress
        {{- if .Values.autoscaling.enabled }}
        autoscaling_config:
          min_replicas: {{ .Values.replicas }}
          max_replicas: {{ .Values.autoscaling.maxReplicas }}
          upscale_delay_s: 0
          downscale_delay_s: 0
          metrics_interval_s: 0.5
          look_back_period_s: 10
          policy:
            policy_function: ensemble_features.scaling:LatencyTarget
            policy_kwargs: {p99_ms: {{ .Values.autoscaling.p99Ms }}, keep_s: {{ .Values.autoscaling.keepS }}}
        {{- else }}
        num_replicas: {{ .Values.replicas }}
        {{- end }}
        max_replicas_per_node: 1
        max_ongoing_requests: 1000
        ray_actor_options: {num_cpus: 1}
        # An empty one, too: it restores the settings of `args`; a missing one does not.
        user_config:
          {{- toYaml (.Values.userConfig | default dict) | nindent 10 }}
{{- end }}

{{/* Ray's parameters: the CPUs that Serve may reserve on the pod, and the same ports in each. */}}
{{- define "ensemble.start" -}}
{num-cpus: {{ . | quote }}, object-store-memory: "100000000", metrics-export-port: "9102", node-manager-port: "6380"}
{{- end }}

{{/* What the head's pod and the workers' have in common. The volumes come last: more of them may follow. */}}
{{- define "ensemble.pod" -}}
# securityContext: the level "restricted" of Kubernetes accepts it, together with the one of each container.
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
# automountServiceAccountToken: no process of the pods calls Kubernetes.
automountServiceAccountToken: false
# terminationGracePeriodSeconds: the time for `lifecycle`, in which HAProxy ends before Ray does.
terminationGracePeriodSeconds: 50
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
# volumes: the file of keys, from a Secret; the ingress reads the file again when the Secret changes. Ray's temporary folder, with the
# logs and the sockets between HAProxy and the ingress. The home and temporary folder, because the rest is read-only.
volumes:
  - {name: ray, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
  {{- with include "ensemble.keys" . }}
  - {name: keys, secret: {secretName: {{ . }}}}
  {{- end }}
  {{- with .Values.models.claim }}
  - {name: models, persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}}
  {{- end }}
{{- end }}

{{- define "ensemble.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{ include "ensemble.least" . }}
{{- end }}

{{- define "ensemble.least" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{/* Folders that a container of this release may write to. */}}
{{- define "ensemble.writable" -}}
- {name: tmp, mountPath: /tmp}
- {name: ray, mountPath: /tmp/ray}
{{- end }}

{{/* Ray's container, in the head and in the workers. */}}
{{- define "ensemble.ray" -}}
{{ include "ensemble.container" . }}
# envFrom: the environment variables of switches.yaml, and credentials.
envFrom:
  - configMapRef: {name: {{ .Release.Name }}-switches}
  {{- with .Values.models.secret }}
  - secretRef: {name: {{ . }}}
  {{- end }}
# env: the folder of the sockets, and the application whose ingress listens on them.
env:
  - {name: HOME, value: /tmp}
  - {name: ENSEMBLE_FRONT, value: /tmp/ray/front}
  - {name: ENSEMBLE_FRONT_APPLICATION, value: ensemble}
  {{- range $name, $value := .Values.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
volumeMounts:
  {{- include "ensemble.writable" . | nindent 2 }}
  {{- if include "ensemble.keys" . }}
  - {name: keys, mountPath: /etc/ensemble, readOnly: true}
  {{- end }}
  {{- if .Values.models.claim }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
# readinessProbe: the raylet answers gRPC's health service by itself. KubeRay's own probes ask Ray's agent, which does not answer while
# it renders metrics (ray-project/ray#65817).
readinessProbe:
  grpc: {port: 6380}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 10
# livenessProbe: Kubernetes restarts a container whose raylet has not answered for 2 minutes.
livenessProbe:
  grpc: {port: 6380}
  initialDelaySeconds: 30
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 24
# lifecycle: Ray goes on for 26 s after the pod was deleted, until HAProxy has no more requests.
lifecycle:
  preStop: {exec: {command: [sh, -c, "sleep 26; ray stop"]}}
{{- end }}
