"""Manifests that an administrator applies once: the rights of users and runs, and no others."""

import shutil
import subprocess

import pytest
import yaml
from tests.charts.helm import EVERYTHING, EXPERIMENTS, ROOT, SERVE, SITES, SIZES, SWEEPS, objects, one, parsed
from tests.minimal import MINIMAL

from opd.experiment import FILE_KINDS

pytestmark = pytest.mark.cluster

CLUSTER = ROOT / "manifests/cluster"
PLURAL = {"ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts", "PersistentVolumeClaim": "persistentvolumeclaims",
          "NetworkPolicy": "networkpolicies", "RayJob": "rayjobs", "Job": "jobs", "Service": "services",
          "PodDisruptionBudget": "poddisruptionbudgets"}  # fmt: skip
NAMESPACED = ("Role", "RoleBinding", "NetworkPolicy")


def kustomize(folder):
    kubectl = shutil.which("kubectl")
    assert kubectl, "kubectl is needed on PATH to build manifests/cluster"
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(folder=CLUSTER):
    return parsed(kustomize(folder))


@pytest.fixture
def picked(tmp_path):
    """manifests/cluster as an admin has it who uncommented the lines of some components."""

    def pick(*components):
        folder = tmp_path / "cluster"
        shutil.copytree(CLUSTER, folder)
        lines = (folder / "kustomization.yaml").read_text().splitlines()
        wanted = tuple(f"  # - components/{name} " for name in components)
        lines = [line.replace("# ", "", 1) if line.startswith(wanted) else line for line in lines]
        (folder / "kustomization.yaml").write_text("\n".join(lines) + "\n")
        return folder

    return pick


def test_the_job_that_fills_a_claim_reaches_what_a_run_s_pods_do():
    job, policy = yaml.safe_load_all((ROOT / "manifests/stage.yaml").read_text())
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    _, outside = (rule["to"] for rule in policy["spec"]["egress"])
    blocks = {peer["ipBlock"]["cidr"]: peer["ipBlock"]["except"] for peer in outside if "ipBlock" in peer}
    assert blocks == {"0.0.0.0/0": ["169.254.0.0/16"], "::/0": ["fd00:ec2::/32"]}


@pytest.mark.parametrize(
    ("folder", "name", "enforced"), [(".", "opd", "restricted"), ("overlays/rdma", "opd-rdma", "privileged")]
)
def test_the_namespace_enforces_restricted_and_the_rdma_overlay_is_one_of_its_own(folder, name, enforced):
    trees = built(CLUSTER / folder)
    namespace = one(trees, "Namespace")["metadata"]
    levels = {mode: namespace["labels"][f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")}
    assert (namespace["name"], namespace["labels"]["opd/runs"], levels["enforce"]) == (name, "true", enforced)
    assert name != "opd" or set(levels.values()) == {"restricted"}
    assert {tree["metadata"].get("namespace", name) for tree in trees if tree["kind"] in NAMESPACED} == {name}


def verbs(role, group, resource):
    rules = [rule for rule in role["rules"] if group in rule["apiGroups"] and resource in rule["resources"]]
    return {verb for rule in rules for verb in rule["verbs"]}


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_user_may_install_and_remove_everything_that_a_chart_renders(kind):
    role = one(built(), "Role")
    sizes = {} if kind in ("convert", "pipeline") else SIZES | (SERVE if kind == "opd" else {})
    for tree in objects(kind, MINIMAL[kind], sizes, EVERYTHING, experiment=""):
        group = tree["apiVersion"].rpartition("/")[0]
        assert {"get", "create", "patch", "delete"} <= verbs(role, group, PLURAL[tree["kind"]]), tree["kind"]


def test_a_user_may_look_and_forward_but_not_enter_pods_or_change_what_kuberay_owns():
    role, of_cluster = one(built(), "Role"), one(built(), "ClusterRole")
    assert {verb for rule in of_cluster["rules"] for verb in rule["verbs"]} == {"get", "list"}
    assert "get" in verbs(role, "", "pods/log")
    assert "create" in verbs(role, "", "pods/portforward")
    assert verbs(role, "", "pods/exec") == set()
    assert verbs(role, "ray.io", "rayclusters") == {"get", "list", "watch"}
    assert not {"rbac.authorization.k8s.io", "*"} & {group for rule in role["rules"] for group in rule["apiGroups"]}
    assert not any("*" in rule["verbs"] + rule["resources"] + rule["apiGroups"] for rule in role["rules"])


def test_the_base_holds_nothing_that_bills_or_limits():
    kinds = {tree["kind"] for tree in built()}
    deny = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert one(built(), "NetworkPolicy")["spec"] == deny, "the default is to deny all traffic"
    assert not {"PersistentVolumeClaim", "ResourceQuota", "ClusterQueue"} & kinds
    for site in SITES.values():
        assert "cache" not in yaml.safe_load(site.read_text())["cluster"], "it would wait for a claim that nobody made"


def test_every_component_is_picked_by_uncommenting_its_line_and_lands_in_the_namespace(picked, tmp_path):
    folder = picked("quota", "claims", "kueue", "monitoring")
    (tmp_path / "all.yaml").write_text(kustomize(folder))
    added = [tree for tree in parsed((tmp_path / "all.yaml").read_text()) if tree not in built()]
    assert {tree["kind"] for tree in added} == {"ResourceQuota", "PersistentVolumeClaim", "ResourceFlavor", "ClusterQueue", "LocalQueue", "PodMonitor", "PrometheusRule", "ConfigMap"}  # fmt: skip
    for tree in added:
        is_in_namespace = tree["kind"] not in ("ResourceFlavor", "ClusterQueue")
        assert tree["metadata"].get("namespace") == ("opd" if is_in_namespace else None), tree["kind"]


def test_every_claim_that_an_example_mounts_is_in_the_component(picked):
    have = {tree["metadata"]["name"] for tree in built(picked("claims")) if tree["kind"] == "PersistentVolumeClaim"}
    for path in (*EXPERIMENTS.values(), *SWEEPS.values(), *SITES.values()):
        cluster = yaml.safe_load(path.read_text()).get("cluster", {})
        named = {mount["claim"] for mount in cluster.get("mounts", ())}
        named |= {cluster["cache"]["claim"]} if "claim" in cluster.get("cache", {}) else set()
        assert named <= have, path.name


def test_the_quota_counts_only_what_every_pod_of_a_run_declares(picked):
    hard = one(built(picked("quota")), "ResourceQuota")["spec"]["hard"]
    assert "limits.cpu" not in hard  # the charts set none, so the quota would reject every pod
    assert {"requests.cpu", "requests.memory", "limits.memory", "requests.nvidia.com/gpu"} <= hard.keys()


def test_kueue_s_queue_is_the_one_that_the_sites_name(picked):
    queue = one(built(picked("kueue")), "LocalQueue")["metadata"]
    assert queue["namespace"] == "opd"
    for path in SITES.values():
        assert f"queue: {{manager: kueue, name: {queue['name']}}}" in path.read_text()


def test_the_operator_s_gate_for_deletion_rules_is_on():
    values = yaml.safe_load((CLUSTER / "operator-values.yaml").read_text())
    assert values["featureGates"] == [{"name": "RayJobDeletionPolicy", "enabled": True}]
