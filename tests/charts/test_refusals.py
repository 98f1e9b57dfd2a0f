"""Refusals of a chart itself: values that must not reach the API server, or that only a running cluster would show."""

import pytest
from tests.charts.helm import CHARTS, DIGEST, RUN, helm, objects, one, refusal, template
from tests.minimal import MINIMAL

from opd.experiment import FILE_KINDS
from opd.experiment.base import MAX_NAME_CHARS

VOLUME = {"name": "x", "emptyDir": {}}
TOO_LONG = "a" * (MAX_NAME_CHARS + 1)
VALUES = [
    ({"kind": "grpo"}, "value must be 'opd'"),
    ({"kind": None}, "'/kind': value must be one of"),
    ({"matrix": {"seed": [1, 2]}}, "opdctl render"),
    ({"cluster": {"image": {"ref": "opd-cpu:dev"}}}, "named by its digest"),
    ({"cluster": {"image": {"ref": None}}}, "images/build.sh trainer --push REGISTRY"),
    ({"cluster": {"image": {"ref": "UPPER/x" + DIGEST[DIGEST.index("@"):]}}}, "does not match pattern"),
    ({"cluster": {"submitter": {"image": "opd-cpu:latest"}}}, "cluster.submitter.image"),
    ({"cluster": {"gpu": {"resource": "nvidia gpu"}}}, "does not match pattern"),
    ({"cluster": {"gpu": {"resource": "amd.com/gpu"}}}, "does not match pattern"),
    ({"device": "cuda", "trainer": {"gpus_per_node": None}}, "trainer.gpus_per_node"),
    # Two volumes at one path, two of one name, a mount without a volume: rows a8 of the review.
    *(({"cluster": {"mounts": [{"claim": "a", "path": path}]}}, "mounted there already") for path in ("/opd", "/tmp", "/dev/shm", "/etc/opd")),
    ({"cluster": {"extraVolumes": [{"name": "scratch", "emptyDir": {}}]}}, "two volumes have this name"),
    ({"cluster": {"extraVolumes": [VOLUME], "extraVolumeMounts": [{"name": "x", "mountPath": "/tmp"}]}}, "mounted there already"),
    ({"cluster": {"extraVolumeMounts": [{"name": "y", "mountPath": "/y"}]}}, "no volume of this name"),
    ({"cluster": {"worker": {"podSpec": {"containers": [{"name": "rayworker"}]}}}}, "needs an image"),
    # The schema: types, enumerations, unknown keys.
    ({"sead": 1}, "additional properties 'sead' not allowed"),
    ({"cluster": {"cleanUp": {"failed": {"x": 1}}}}, "additional properties 'x' not allowed"),
    ({"cluster": {"cleanUp": None}}, "cleanUp"),
    ({"cluster": {"labels": {"sidecar.istio.io/inject": False}}}, "got boolean, want string"),
    ({"cluster": {"lifecycle": "Bogus"}}, "'rules', 'suspendable'"),
    ({"opd": {"loss_type": "kl"}}, "/opd/loss_type"),
    ({"actor": {"learning_rat": 1}}, "learning_rat"),
]  # fmt: skip
SECRETS = [
    {"env": {"WANDB_API_KEY": "sk-123"}},
    {"cluster": {"extraEnv": [{"name": "HF_TOKEN", "value": "sk-123"}]}},
    {"cluster": {"worker": {"annotations": {"DB_PASSWORD": "sk-123"}}}},
    {"rollout": {"engine_kwargs": {"A_SECRET": "sk-123"}}},
    {"store": {"url": "s3://user:sk-123@bucket/x"}},
    {"overrides": ["+ray_kwargs.ray_init.runtime_env.env_vars.HF_TOKEN=sk-123"]},
]


@pytest.mark.parametrize(("layer", "words"), VALUES, ids=str)
def test_a_value_is_refused_before_anything_is_made(layer, words):
    assert words in refusal("opd", layer, experiment="quickstart")


@pytest.mark.parametrize("name", ["1abc", "a.b", TOO_LONG])
def test_a_name_that_helm_takes_and_kuberay_parks_for_good_is_refused(name):
    message = refusal("opd", name=name)
    assert name in message
    assert f"at most {MAX_NAME_CHARS} characters" in message
    assert one(objects("opd", name=TOO_LONG[:-1]), "RayJob")["metadata"]["name"] == TOO_LONG[:-1]


def test_an_upgrade_is_refused_because_kuberay_would_ignore_it():
    assert "install under another name" in refusal("opd", flags=("--is-upgrade",))


@pytest.mark.parametrize("layer", SECRETS)
def test_a_literal_secret_is_refused_wherever_it_is_and_never_shown(layer):
    message = refusal("opd", layer)
    assert "secret is never written" in message
    assert "sk-123" not in message


def test_a_reference_to_a_secret_is_no_literal():
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    assert objects("opd", {"cluster": {"extraEnv": [{"name": "HF_TOKEN", "valueFrom": reference}]}})


def test_a_tag_is_taken_for_an_image_that_is_on_the_nodes():
    local = {"cluster": {"image": {"ref": "opd-cpu:dev", "local": True}}}
    assert "imagePullPolicy: Never" in template("opd", local).stdout


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_helm_lint_of_a_chart_alone_passes_and_says_what_to_give(kind):
    done = helm("lint", "--strict", str(CHARTS / kind))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it begins with `kind: opd`" in done.stderr


def test_a_null_unsets_what_a_site_file_gives():
    site = {"store": {"url": "s3://b/x", "endpoint": "http://minio:9000"}, "cluster": {"gpu": {"type": "A"}}}
    unset = {"store": {"endpoint": None}, "cluster": {"gpu": {"type": None}, "queue": None}}
    trees = objects("opd", MINIMAL["opd"], {"trainer": {"gpus_per_node": 8}}, site, unset, experiment="", name=RUN)
    assert "endpoint" not in one(trees, "ConfigMap")["data"]["exp.json"]
    assert "nodeSelector" not in str(one(trees, "RayJob"))
