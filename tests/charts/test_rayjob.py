"""The RayJob of every chart keeps the rules that KubeRay does not tell anybody about."""

import pytest
from tests.charts.helm import (
    CHARTS,
    EXAMPLE_OF,
    EXPERIMENTS,
    RUN,
    head,
    helm,
    objects,
    one,
    rayjob,
    refusal,
    template,
)
from tests.minimal import MINIMAL

from opd.config import FILE_KINDS

RUNS = [kind for kind in FILE_KINDS if kind != "convert"]


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_every_chart_renders_one_rayjob_of_the_stable_api(kind):
    job = one(objects(kind), "RayJob")
    assert job["apiVersion"] == "ray.io/v1"
    assert job["metadata"]["name"] == RUN


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a", "a" * 47, "run-1"])
def test_a_name_that_kuberay_takes_is_taken(name):
    assert one(objects("opd", name=name), "RayJob")["metadata"]["name"] == name


@pytest.mark.parametrize("name", ["1abc", "a.b", "a" * 48, "a" * 53])
def test_a_name_that_helm_takes_and_kuberay_parks_for_good_is_refused(name):
    message = refusal("opd", name=name)
    assert "release name" in message
    assert name in message
    assert "at most 47 characters" in message


def test_an_upgrade_is_refused_because_kuberay_would_ignore_it():
    message = refusal("opd", flags=("--is-upgrade",))
    assert "helm upgrade" in message
    assert "install under another name" in message


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_entrypoint_is_one_fixed_command_without_anything_a_shell_would_touch(kind):
    nasty = {"name": "x", "env": {"A": "$(rm -rf /); `id` 'q' \"d\" && | > <"}}
    entrypoints = {rayjob(kind)["entrypoint"], rayjob(kind, nasty)["entrypoint"]}
    assert entrypoints == {"python -m opd.pods.start /etc/opd/exp.json"}


def rules(spec):
    return [(rule["policy"], rule["condition"]) for rule in spec["deletionStrategy"]["deletionRules"]]


def test_rules_cover_success_and_deployment_failure_and_nothing_else():
    spec = rayjob("opd")
    conditions = {key: value for _, condition in rules(spec) for key, value in condition.items() if key != "ttlSeconds"}
    assert conditions == {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Failed"}
    assert all(len(condition) == 2 for _, condition in rules(spec))


def test_each_end_deletes_workers_then_cluster_then_the_rayjob_at_times_that_never_decrease():
    for key in ("jobStatus", "jobDeploymentStatus"):
        stages = [(policy, at["ttlSeconds"]) for policy, at in rules(rayjob("opd")) if key in at]
        assert [policy for policy, _ in stages] == ["DeleteWorkers", "DeleteCluster", "DeleteSelf"]
        times = [ttl for _, ttl in stages]
        assert times == sorted(times)


def test_rules_and_shutdown_after_the_job_exclude_each_other():
    by_rules = rayjob("opd")
    assert not {"shutdownAfterJobFinishes", "ttlSecondsAfterFinished"} & by_rules.keys()
    suspendable = rayjob("opd", {"cluster": {"lifecycle": "suspendable"}})
    assert suspendable["shutdownAfterJobFinishes"] is True
    assert suspendable["ttlSecondsAfterFinished"] == 300
    assert "deletionStrategy" not in suspendable


def test_a_zero_survives_every_template():
    zeros = {"workersSeconds": 0, "clusterSeconds": 0, "selfSeconds": 0}
    layer = {"cluster": {"cleanUp": {"succeeded": zeros, "failed": zeros}, "retries": {"backoffLimit": 0, "submitterBackoffLimit": 0}}}  # fmt: skip
    spec = rayjob("opd", layer)
    assert [at["ttlSeconds"] for _, at in rules(spec)] == [0] * 6
    assert spec["backoffLimit"] == 0
    assert spec["submitterConfig"]["backoffLimit"] == 0
    suspendable = rayjob("opd", {"cluster": {"lifecycle": "suspendable", "cleanUp": {"suspendableSeconds": 0}}})
    assert suspendable["ttlSecondsAfterFinished"] == 0


def test_retries_and_deadlines_reach_kuberay_and_the_trainer():
    layer = {
        "cluster": {"retries": {"backoffLimit": 7}, "deadlines": {"activeSeconds": 9000, "preRunningSeconds": 600}}
    }
    spec = rayjob("opd", layer)
    assert spec["backoffLimit"] == 7
    assert (spec["activeDeadlineSeconds"], spec["preRunningDeadlineSeconds"]) == (9000, 600)
    env = {item["name"]: item.get("value") for item in head(spec)["env"]}
    assert env["OPD_ACTIVE_DEADLINE_SECONDS"] == "9000"
    assert env["OPD_PRE_RUNNING_DEADLINE_SECONDS"] == "600"


def test_a_mode_that_the_crd_would_let_through_is_refused():
    assert "'K8sJobMode', 'HTTPMode'" in refusal("opd", {"cluster": {"submissionMode": "Bogus"}})


def test_nothing_is_installed_at_run_time():
    assert "runtimeEnvYAML" not in rayjob("opd")


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_chart_refuses_another_kind_and_says_which_one_it_takes(kind):
    other = FILE_KINDS[(FILE_KINDS.index(kind) + 1) % len(FILE_KINDS)]
    assert f"value must be '{kind}'" in refusal(kind, {"kind": other})


def test_a_matrix_is_refused_with_the_command_that_renders_it():
    assert "opdctl render" in refusal("opd", {"matrix": {"seed": [1, 2]}})


def test_the_image_is_required_and_the_error_names_the_command_that_makes_one():
    done = template("opd")
    assert done.returncode != 0
    assert "cluster.image.ref" in done.stderr
    assert "images/build.sh trainer --push REGISTRY" in done.stderr


def test_a_tag_is_taken_only_for_an_image_that_lies_on_the_nodes():
    tag = {"cluster": {"image": {"ref": "opd-cpu:dev"}}}
    assert "named by its digest" in refusal("opd", tag)
    spec = rayjob("opd", tag, {"cluster": {"image": {"local": True}}})
    assert (head(spec)["image"], head(spec)["imagePullPolicy"]) == ("opd-cpu:dev", "Never")


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_helm_lint_finds_nothing(kind):
    done = helm("lint", "--strict", str(CHARTS / kind), "-f", str(EXPERIMENTS[EXAMPLE_OF[kind]]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_helm_lint_of_a_chart_alone_passes_and_says_what_to_give(kind):
    done = helm("lint", "--strict", str(CHARTS / kind))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"it begins with `kind: {kind}`" in done.stderr


@pytest.mark.parametrize(("kind", "missing"), [("opd", "model"), ("opd-agent", "agent"), ("convert", "convert")])
def test_a_key_that_every_experiment_of_a_kind_needs_is_required_by_the_schema(kind, missing):
    tree = {key: value for key, value in MINIMAL[kind].items() if key != missing}
    assert f"at '/{missing}': missing property" in refusal(kind, tree, experiment="")


def test_a_distillation_has_a_teacher_or_several():
    without = {key: value for key, value in MINIMAL["opd"].items() if key != "teacher"}
    assert "missing property 'teacher'" in refusal("opd", without, experiment="")
    several = without | {"teachers": {"a": {"path": "t"}}, "route": {"to": {"x": "a"}}}
    assert objects("opd", several, experiment="")
    nameless = several | {"teachers": {"a": {"dtype": "bf16"}}}
    assert "at '/teachers/a': missing property 'path'" in refusal("opd", nameless, experiment="")


def test_kueue_and_volcano_find_their_queue_in_labels_of_the_rayjob():
    kueue = {"cluster": {"lifecycle": "suspendable", "queue": {"manager": "kueue", "name": "q", "priorityClass": "p"}}}
    labels = one(objects("opd", kueue), "RayJob")["metadata"]["labels"]
    assert (labels["kueue.x-k8s.io/queue-name"], labels["kueue.x-k8s.io/priority-class"]) == ("q", "p")
    volcano = {"cluster": {"queue": {"manager": "volcano", "name": "q", "priorityClass": "p"}}}
    labels = one(objects("opd", volcano), "RayJob")["metadata"]["labels"]
    assert (labels["volcano.sh/queue-name"], labels["ray.io/priority-class-name"]) == ("q", "p")
