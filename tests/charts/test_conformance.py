"""Everything that is rendered is valid, strictly, against KubeRay's own CRDs and the Kubernetes API."""

import json
import subprocess

import pytest
import yaml
from tests.charts.helm import EXPERIMENTS, IMAGE, SERVE, SITES, kind_of, objects, one, template
from tests.minimal import MINIMAL

import kubeschemas
from gotools import find
from opd.experiment import FILE_KINDS

pytestmark = pytest.mark.cluster

EVERYTHING = {
    "cluster": {
        "image": {"pullSecrets": ["registry"]},
        "lifecycle": "suspendable",
        "queue": {"manager": "kueue", "name": "q", "priorityClass": "p"},
        "deadlines": {"activeSeconds": 9000, "preRunningSeconds": 600},
        "cache": {"claim": "hub"},
        "mounts": [{"claim": "a", "path": "/a", "subPath": "x"}],
        "secrets": {"huggingFace": {"secret": "h", "key": "t"}, "store": "s"},
        "auth": {"secret": "ray-token"},
        "networkPolicy": {"metricsNamespace": "monitoring"},
        "podMonitor": {"enabled": True},
        "extraEnv": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "envFrom": [{"configMapRef": {"name": "c"}}],
        "extraVolumes": [{"name": "x", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
        "annotations": {"a/b": "c"},
        "head": {"tolerations": [{"key": "k", "operator": "Exists"}], "priorityClassName": "high"},
    }
}
SIZES = {"trainer": {"gpus_per_node": 8}}
WORKERS = {"cluster": {"gpu": {"type": "NVIDIA-H200"}, "rdma": {"enabled": True, "ipcLock": True}}}
DATABASE = {"agent": {"database_dir": "/db"}, "cluster": {"toolDatabase": {"url": "s3://b/x", "sha256": "0" * 64}}}


def cases():
    """Every chart with every spec of its kind, and with everything switched on."""
    for name in EXPERIMENTS:
        yield name, (kind_of(name), IMAGE), {"experiment": name}
    for name in EXPERIMENTS:
        for site, path in SITES.items():
            values = yaml.safe_load(path.read_text())  # over the experiment, which has no key in common with a site
            yield f"{name}-{site}", (kind_of(name), IMAGE, values), {"experiment": name}
    for kind in FILE_KINDS:
        layers = [MINIMAL[kind], *([] if kind in ("convert", "pipeline") else [SIZES]), EVERYTHING]
        layers += [WORKERS] * (kind != "convert") + [DATABASE] * (kind == "opd-agent") + [SERVE] * (kind == "opd")
        yield f"{kind}-everything", (kind, IMAGE, *layers), {"experiment": ""}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """kubeconform's verdict on each rendered object: (case, kind, status, message)."""
    folder = tmp_path_factory.mktemp("rendered")
    for name, arguments, options in cases():
        done = template(*arguments, **options)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        (folder / f"{name}.yaml").write_text(done.stdout)
    return conform(folder)


def conform(folder):
    location = kubeschemas.location()
    command = [find("kubeconform"), "-strict", "-output", "json", "-verbose", "-schema-location", location]
    done = subprocess.run([*map(str, command), str(folder)], capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(done.stdout)["resources"]
    return [(item["filename"].rpartition("/")[2], item["kind"], item["status"], item["msg"]) for item in found]


def test_every_rendered_object_is_valid(verdicts):
    assert [item for item in verdicts if item[2] != "statusValid"] == []


def test_every_case_was_looked_at(verdicts):
    assert len({case for case, *_ in verdicts}) == (1 + len(SITES)) * len(EXPERIMENTS) + len(FILE_KINDS)
    wanted = {"RayJob", "Service", "ConfigMap", "NetworkPolicy", "Job", "PodMonitor"}
    assert {kind for _, kind, *_ in verdicts} >= wanted


@pytest.mark.parametrize("word", ["true", "null", "0123", "1e3"])
def test_names_that_yaml_would_read_as_something_else_stay_text(word):
    networks = {"operatorNamespace": word, "metricsNamespace": word}
    names = {"auth": {"secret": word}, "checkpoints": {"storageClass": word}, "worker": {"priorityClassName": word}}
    layer = {"cluster": {"image": {"pullSecrets": [word]}, "networkPolicy": networks, **names}}
    trees = objects("opd", layer)
    cluster, claim = one(trees, "RayJob")["spec"]["rayClusterSpec"], one(trees, "PersistentVolumeClaim")["spec"]
    worker = cluster["workerGroupSpecs"][0]["template"]["spec"]
    found = (cluster["authOptions"]["secretName"], worker["imagePullSecrets"], worker["priorityClassName"])
    assert (*found, claim["storageClassName"]) == (word, [{"name": word}], word, word)
    ingress = str([tree["spec"].get("ingress") for tree in trees if tree["kind"] == "NetworkPolicy"])
    assert f"'kubernetes.io/metadata.name': '{word}'" in ingress
