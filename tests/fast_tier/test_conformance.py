"""The API server takes everything that charts render, with KubeRay's own CRDs and without a field that it does not know."""

import pytest
import yaml
from tests.charts.helm import EVERYTHING, EXPERIMENTS, IMAGE, ROOT, SERVE, SITES, SIZES, kind_of, objects, one, template
from tests.minimal import MINIMAL

from opd.experiment import FILE_KINDS

WORKERS = {"cluster": {"gpu": {"type": "NVIDIA-H200"}, "rdma": {"enabled": True, "ipcLock": True}}}


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
        layers += [WORKERS] * (kind != "convert") + [SERVE] * (kind == "opd")
        yield f"{kind}-everything", (kind, IMAGE, *layers), {"experiment": ""}


def test_the_server_takes_every_rendered_object(tier, tmp_path):
    for name, arguments, options in cases():
        done = template(*arguments, **options)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        (tmp_path / f"{name}.yaml").write_text(done.stdout.replace("namespace: opd\n", "namespace: default\n"))
    (tmp_path / "stage.yaml").write_text((ROOT / "manifests/stage.yaml").read_text())
    tier.admin.run("create", "--dry-run=server", "--validate=strict", f"--filename={tmp_path}", timeout_s=900)


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
