"""Doctor's checks of a namespace's share: ResourceQuotas, and Kueue's queues, against all pods of a run together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

from opd.config.quantity import number
from opdctl.doctor.placement import Group
from opdctl.doctor.report import Check, bad, good
from opdctl.doctor.selectors import Amounts, Tree, add, amounts, in_words, limits, matches, requests, selects

# Kinds of the charts, and what KubeRay and Helm make beside them.
PLURALS = {
    "RayJob": "rayjobs.ray.io",
    "ConfigMap": "configmaps",
    "ServiceAccount": "serviceaccounts",
    "NetworkPolicy": "networkpolicies.networking.k8s.io",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "PodDisruptionBudget": "poddisruptionbudgets.policy",
    "PodMonitor": "podmonitors.monitoring.coreos.com",
    "Role": "roles.rbac.authorization.k8s.io",
    "RoleBinding": "rolebindings.rbac.authorization.k8s.io",
}
MADE_LATER = {"rayclusters.ray.io": 1, "services": 1, "secrets": 2}
# These count without `count/` too.
SHORT = ("configmaps", "services", "secrets", "persistentvolumeclaims")


def pods_usage(groups: Iterable[Group]) -> Amounts:
    """What pods count for in a quota."""
    out: Amounts = {}
    for group in groups:
        asked, bound = requests(group.spec), limits(group.spec)
        one = {f"requests.{name}": amount for name, amount in asked.items()}
        one |= {name: amount for name, amount in asked.items() if name in ("cpu", "memory", "ephemeral-storage")}
        one |= {f"limits.{name}": amount for name, amount in bound.items()}
        out = add(out, {**one, "pods": Decimal(1), "count/pods": Decimal(1)}, times=group.count)
    return out


def objects_usage(objects: Iterable[Tree]) -> Amounts:
    """What a run's other objects count for, claims with their storage."""
    counts: Amounts = {name: Decimal(number) for name, number in MADE_LATER.items()}
    storage: Amounts = {}
    for tree in objects:
        counts = add(counts, {PLURALS.get(tree["kind"], tree["kind"].lower()): Decimal(1)})
        if tree["kind"] == "PersistentVolumeClaim":
            size = number(tree["spec"]["resources"]["requests"]["storage"])
            of = tree["spec"].get("storageClassName")
            storage = add(storage, {"requests.storage": size})
            if of:
                per = f"{of}.storageclass.storage.k8s.io"
                storage = add(storage, {f"{per}/requests.storage": size, f"{per}/persistentvolumeclaims": Decimal(1)})
    short = {name: counts[name] for name in SHORT if name in counts}
    return {**{f"count/{name}": amount for name, amount in counts.items()}, **short, **storage}


def check_quota(quota: Tree, groups: Sequence[Group], objects: Sequence[Tree]) -> list[Check]:
    """Whether what is left of a ResourceQuota holds the run."""
    name, status = quota["metadata"]["name"], quota.get("status") or {}
    hard, used = amounts(status.get("hard")), amounts(status.get("used"))
    scopes = _scopes(quota["spec"])
    counted = pods_usage(group for group in groups if all(_is_in(group.spec, scope) for scope in scopes))
    asked = counted if scopes else add(counted, objects_usage(objects))
    few = []
    for key, total in hard.items():
        wanted, taken = asked.get(key, Decimal()), used.get(key, Decimal())
        if wanted and wanted > total - taken:
            kind = key.partition(".")[2] or key
            few.append(
                f"{key}: the run wants {in_words(kind, wanted)}, {in_words(kind, taken)} of {in_words(kind, total)} are used"
            )
    if few:
        fix = "wait for other runs to end, ask for less, or have the ResourceQuota raised"
        return [bad("quota", f"{name}: {'; '.join(few)}", fix)]
    return [good("quota", f"{name} holds the run")]


def _scopes(spec: Tree) -> list[Tree]:
    selector = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return [*({"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()), *selector]


def _is_in(spec: Tree, scope: Tree) -> bool:
    """Whether a quota of this scope counts a pod: a run's pods have requests and no deadline of their own."""
    name = scope["scopeName"]
    if name == "PriorityClass":
        own = {"class": spec["priorityClassName"]} if spec.get("priorityClassName") else {}
        return matches({**scope, "key": "class"}, own)
    return name in ("NotTerminating", "NotBestEffort")


def check_kueue(groups: Sequence[Group], queue: Tree, cluster_queue: Tree, namespace: Tree | None) -> Check:
    """Whether a ClusterQueue can ever admit the run that a LocalQueue hands it.

    Args:
        namespace: the run's, None where it cannot be looked at.
    """
    local, name = queue["metadata"]["name"], cluster_queue["metadata"]["name"]
    said = f"LocalQueue {local}, ClusterQueue {name}"
    spec = cluster_queue["spec"]
    labels = ((namespace or {}).get("metadata") or {}).get("labels") or {}
    if namespace is not None and not selects(spec.get("namespaceSelector"), labels):
        return bad(
            "queue",
            f"{said}: its namespaceSelector does not select this namespace",
            "have the namespace labelled as it wants",
        )
    conditions = (cluster_queue.get("status") or {}).get("conditions") or ()
    stopped = [item for item in conditions if item["type"] == "Active" and item.get("status") == "False"]
    if stopped:
        reason = stopped[0].get("message", "")
        return bad("queue", f"{said} admits nothing: {reason}", f"kubectl describe clusterqueue {name}")
    asked: Amounts = {}
    for group in groups:
        asked = add(asked, requests(group.spec), times=group.count)
    quotas = _nominal(spec)
    uncovered = sorted(key for key, amount in asked.items() if amount and key not in quotas)
    if uncovered:
        text = f"{said} does not cover {', '.join(uncovered)}: Kueue would never admit the run"
        return bad("queue", text, "have it added to the ClusterQueue's coveredResources, or do not ask for it")
    asked["pods"] = Decimal(sum(group.count for group in groups))
    few = [f"{key}: the run wants {in_words(key, asked[key])} of {in_words(key, total)}" for key, total in quotas.items()
           if asked.get(key, 0) > total]  # fmt: skip
    if few and not (spec.get("cohort") or spec.get("cohortName")):
        return bad(
            "queue", f"{said} is smaller than the run: {'; '.join(few)}", "ask for less, or have its quota raised"
        )
    return good("queue", said)


def _nominal(spec: Tree) -> Amounts:
    """Resource -> the quota of all flavors together."""
    out: Amounts = {}
    for group in spec.get("resourceGroups") or ():
        out = add(out, {name: Decimal() for name in group.get("coveredResources") or ()})
        for flavor in group.get("flavors") or ():
            for item in flavor.get("resources") or ():
                out = add(out, {item["name"]: number(item["nominalQuota"])})
    return out
