{{/* The image of the daemons. */}}
{{- define "kazahana.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/*
The sidecar, for charts that have this one as a dependency named kazahana. In a pod:

  serviceAccountName: NAME     # one of kazahana.serviceAccounts
  automountServiceAccountToken: false
  securityContext: {fsGroup: 65532, ...}
  initContainers:
    {{- include "kazahana.sidecar" .Subcharts.kazahana | nindent 4 }}
  volumes:
    {{- include "kazahana.sidecar.volumes" .Subcharts.kazahana | nindent 4 }}

and in the application's container

  env: [{name: KAZAHANA_SOCKET, value: /run/kazahana/kazahanad.sock}]
  volumeMounts: [{name: kazahana-socket, mountPath: /run/kazahana, readOnly: true}]
*/}}
{{- define "kazahana.sidecar" -}}
- name: kazahanad
  image: {{ include "kazahana.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args: [serve]
  env:
    - {name: KAZAHANA_SOCKET, value: /run/kazahana/kazahanad.sock}
    - {name: KAZAHANA_STATE_DIR, value: /var/lib/kazahana/state}
    - {name: KAZAHANA_LIVE_DIR, value: /run/kazahana-live/live}
    - {name: KAZAHANA_PROVIDER, value: {{ .Values.provider | quote }}}
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: NODE_NAME
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    - {name: KAZAHANA_META, value: "pod=$(POD_NAME),namespace=$(POD_NAMESPACE),node=$(NODE_NAME)"}
    - {name: KAZAHANA_ADMIN_LISTEN, value: ":9746"}
    {{- range $name, $value := .Values.env }}
    - {name: {{ $name }}, value: {{ $value | quote }}}
    {{- end }}
  ports:
    - {name: kazahana-admin, containerPort: 9746}
  startupProbe:
    httpGet: {path: /readyz, port: kazahana-admin}
    periodSeconds: 1
    timeoutSeconds: 5
    failureThreshold: 60
  readinessProbe:
    httpGet: {path: /readyz, port: kazahana-admin}
    periodSeconds: 10
    timeoutSeconds: 5
  livenessProbe:
    httpGet: {path: /healthz, port: kazahana-admin}
    periodSeconds: 20
    timeoutSeconds: 5
    failureThreshold: 3
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  volumeMounts:
    - {name: kazahana-socket, mountPath: /run/kazahana}
    - {name: kazahana-state, mountPath: /var/lib/kazahana}
    - {name: kazahana-live, mountPath: /run/kazahana-live}
    - {name: kazahana-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{- define "kazahana.sidecar.volumes" -}}
- name: kazahana-socket
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: kazahana-state
  emptyDir: {medium: Memory, sizeLimit: 8Mi}
- name: kazahana-live
  emptyDir: {medium: Memory, sizeLimit: 4Mi}
- name: kazahana-token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap:
          name: kube-root-ca.crt
          items: [{key: ca.crt, path: ca.crt}]
      - downwardAPI:
          items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]
{{- end }}

{{/* The rules of a Role that may lease machine IDs. */}}
{{- define "kazahana.rules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, create, update]
{{- end }}
