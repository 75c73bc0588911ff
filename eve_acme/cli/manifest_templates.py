"""Templates of the files that `manifests` writes."""

POD = """\
automountServiceAccountToken: false
enableServiceLinks: false
{restart}terminationGracePeriodSeconds: 30
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {{type: RuntimeDefault}}
containers:
  - name: node
    image: eve-acme
    args: [node, --role, {words}]
    envFrom:
      - configMapRef: {{name: eve}}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {{drop: [ALL]}}
    resources:
      requests: {{cpu: {cpu}, memory: {memory}Mi}}
      limits: {{memory: {limit}Mi}}
    startupProbe: # Imports can take minutes.
      {alive}
      periodSeconds: 5
      failureThreshold: 120
    livenessProbe:
      {alive}
      periodSeconds: 10
      timeoutSeconds: 10
{health}    volumeMounts:
      - {{name: tmp, mountPath: /tmp}}
{mount}volumes:
  - {{name: tmp, emptyDir: {{}}}}
"""

READINESS = """\
    readinessProbe: # Ready while the run makes progress; nothing is killed for it.
      httpGet: {{path: /health, port: {port}}}
      periodSeconds: 10
      timeoutSeconds: 10
"""

SERVICES = """\
# StatefulSets, because two pods of one role must never run at once: each writes to its own volume.
"""

SERVICE = """\
# {about} Headless: the service's name resolves to its one pod.
apiVersion: v1
kind: Service
metadata:
  name: {role}
  labels: {{app: eve}}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{app: eve, role: {role}}}
  ports: [{ports}]
---
"""

STATEFUL_SET = """\
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {role}
  labels: {{app: eve}}
spec:
  serviceName: {role}
  replicas: 1
  selector:
    matchLabels: {{app: eve, role: {role}}}
  template:
    metadata:
      labels: {{app: eve, role: {role}}}
    spec:
{pod}  volumeClaimTemplates:
    - metadata: {{name: run}}
      spec:
        accessModes: [ReadWriteOnce]
        resources: {{requests: {{storage: {disk}Mi}}}}
"""

JOBS = """\
# Jobs: the coordinator, which completes when the run ends, and the actors.
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: eve-results
  labels: {app: eve}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
---
"""

ACTORS = """\
# `parallelism` is the number of actors; it may be changed during the run. Actors are stateless.
"""

JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: {role}
  labels: {{app: eve}}
spec:
{parallelism}  backoffLimit: {failures}
  template:
    metadata:
      labels: {{app: eve, role: {role}}}
    spec:
{pod}"""

RUN = """\
# The run's settings, and the NetworkPolicy and PodDisruptionBudget of its pods.
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
  labels: {{pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: eve
  labels: {{app: eve}}
data:
  EVE_LAUNCH: {words}
---
# Courier unpickles what it receives: only pods of this run may connect, and they may connect to
# each other and to DNS only. Pods of the namespace 'monitoring' may read the metrics.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: eve
  labels: {{app: eve}}
spec:
  podSelector: {{}}
  policyTypes: [Ingress, Egress]
  ingress:
    - from: [{{podSelector: {{matchLabels: {{app: eve}}}}}}]
      ports: [{{protocol: TCP, port: 7001, endPort: {last}}}]
    - from: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: monitoring}}}}}}]
      ports: [{{protocol: TCP, port: {metrics}}}]
  egress:
    - to: [{{podSelector: {{matchLabels: {{app: eve}}}}}}]
      ports: [{{protocol: TCP, port: 7001, endPort: {last}}}]
    - to: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: kube-system}}}}}}]
      ports: [{{protocol: UDP, port: 53}}, {{protocol: TCP, port: 53}}]
---
# A drain evicts one of these at a time: the run waits for it, and continues.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: eve
  labels: {{app: eve}}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{app: eve}}
    matchExpressions: [{{key: role, operator: In, values: [counter, replay, learner, evaluator]}}]
"""

KUSTOMIZATION = """\
# kubectl apply -k DIR
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: {namespace}
resources:
{resources}images:
  - name: eve-acme
{image}
"""
