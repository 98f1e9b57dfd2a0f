{{- /* Generated from opd.config and uv.lock by `make schema`: do not edit. */ -}}
{{- define "opd.constants" -}}
{
 "namePattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$",
 "maxNameChars": 47,
 "rayVersion": "2.60.0",
 "secretName": "^[A-Z][A-Z0-9_]*_(TOKEN|KEY|PASSWORD|SECRET)$|^(TOKEN|PASSWORD|SECRET)$",
 "allAddresses": "0.0.0.0/0",
 "ownLinks": {"0.0.0.0/0": "169.254.0.0/16", "::/0": "fd00:ec2::/32"},
 "identities": {
  "gke": {
   "annotation": "iam.gke.io/gcp-service-account",
   "podLabels": {},
   "egress": [{"cidr": "169.254.169.254/32", "ports": [80, 8080]}, {"cidr": "169.254.169.252/32", "ports": [987, 988]}]
  },
  "eks-pod-identity": {
   "annotation": "",
   "podLabels": {},
   "egress": [{"cidr": "169.254.170.23/32", "ports": [80]}, {"cidr": "fd00:ec2::23/128", "ports": [80]}]
  },
  "azure": {
   "annotation": "azure.workload.identity/client-id",
   "podLabels": {"azure.workload.identity/use": "true"},
   "egress": []
  }
 },
 "podSpec": {
  "guarded": ["automountServiceAccountToken", "hostIPC", "hostNetwork", "hostPID", "hostPath", "hostPort", "privileged", "securityContext", "serviceAccount", "serviceAccountName", "serviceAccountToken"],
  "freeToUnset": ["securityContext.runAsUser", "securityContext.runAsGroup", "securityContext.fsGroup"],
  "rule": "Pod Security `restricted` or the pods' identity rests on it, so podSpec leaves it alone",
  "fix": "remove it (user and groups: cluster.podSecurity; account: cluster.serviceAccount.name), or set cluster.podSecurity.acceptUnrestricted: true",
  "unsetRule": "it is a list of fields to drop, as dotted paths",
  "unsetFix": "write it like unset: [securityContext.runAsUser]"
 },
 "storeVariables": {"endpoint": "AWS_ENDPOINT_URL_S3", "region": "AWS_DEFAULT_REGION", "addressing": "OPD_S3_ADDRESSING"},
 "urlCredentials": "[a-z][a-z0-9+.-]*://[^/@\\s]*:[^/@\\s]*@",
 "secretInText": "[A-Z][A-Z0-9_]*_(TOKEN|KEY|PASSWORD|SECRET)['\\\"]?\\s*[:=]",
 "refused": [
  {
   "pattern": "(^|\\.)(lora_rank|lora\\.rank)$",
   "harmless": ["0"],
   "rule": "LoRA students are not supported: verl builds no reference worker for them, and a merged student needs full weights"
  },
  {
   "pattern": "(^|\\.)(lora|lora_\\w+)(\\.|$)",
   "harmless": ["null"],
   "rule": "LoRA students are not supported: verl builds no reference worker for them, and a merged student needs full weights"
  },
  {
   "pattern": "(^|\\.)trainer_mode$|^trainer\\.mode$|^mode$",
   "harmless": ["sync"],
   "rule": "only verl's sync trainer is supported: other modes reuse stale rollouts, which on-policy distillation excludes"
  },
  {"pattern": "^trainer\\.use_v1$", "harmless": ["true"], "rule": "only verl's V1 trainer is supported"},
  {
   "pattern": "(^|\\.)hybrid_engine$",
   "harmless": ["true"],
   "rule": "trainer and rollout share their devices here: a separate rollout pool needs verl's async trainer"
  },
  {
   "pattern": "(^|\\.)(strategy|model_engine)$|^engine$",
   "harmless": ["dp", "fsdp2"],
   "rule": "only the fsdp2 engine is supported: Megatron shards heads and checkpoints in a way the teacher cannot follow"
  },
  {
   "pattern": "(^|\\.)megatron(\\.|$)",
   "harmless": [],
   "rule": "only the fsdp2 engine is supported: Megatron shards heads and checkpoints in a way the teacher cannot follow"
  },
  {
   "pattern": "^distillation\\.enabled$",
   "harmless": ["false"],
   "rule": "verl's own distillation uses top-k or sampled tokens only; kind opd distils the full distributions"
  }
 ],
 "storageUnits": {"aNode": 2, "cpu": 1, "override": "^[+]*transfer_queue\\.backend\\.SimpleStorage\\.num_data_storage_units=([0-9]+)$"},
 "needs": {
  "worker": [
   {"name": "ranks", "per": "rank", "cpus": 3, "leastGib": 1.0, "roomGib": 1.0},
   {"name": "queue storage units", "per": "storage unit", "cpus": 1, "leastGib": 0.5, "roomGib": 0.5},
   {"name": "queue controllers", "per": "node", "cpus": 1, "leastGib": 0.5, "roomGib": 0.0},
   {"name": "rollout workers", "per": "rollout worker", "cpus": 0, "leastGib": 0.5, "roomGib": 0.5},
   {"name": "reward workers", "per": "reward worker", "cpus": 0, "leastGib": 0.5, "roomGib": 0.5},
   {"name": "GPUs", "per": "gpu", "cpus": 0, "leastGib": 4.0, "roomGib": 16.0},
   {"name": "Ray nodes", "per": "node", "cpus": 0, "leastGib": 0.5, "roomGib": 1.5}
  ],
  "head": [
   {"name": "drivers", "per": "node", "cpus": 1, "leastGib": 1.5, "roomGib": 8.5},
   {"name": "Ray heads", "per": "node", "cpus": 1, "leastGib": 1.0, "roomGib": 3.0}
  ],
  "convert": [
   {"name": "conversions", "per": "node", "cpus": 3, "leastGib": 1.5, "roomGib": 56.5},
   {"name": "Ray heads", "per": "node", "cpus": 1, "leastGib": 1.0, "roomGib": 3.0}
  ]
 }
}
{{- end -}}
