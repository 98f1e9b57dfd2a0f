"""The small objects: the experiment as the trainer gets it, labels, notes, metrics and the helm test."""

import json
import shutil

import pytest
from tests.charts.helm import (
    CHARTS,
    EXAMPLE_OF,
    EXPERIMENTS,
    IMAGE,
    RUN,
    helm,
    objects,
    one,
    parsed,
    pod_templates,
    template,
    worker,
)  # fmt: skip

from opd.experiment import dump_spec, load_text

ODD = {
    "name": "odd",
    "seed": 0,
    "env": {"RATIO": "1:30", "FLAG": "no", "HEX": "0x1f", "OCTAL": "010", "EMPTY": "", "LINES": "a\nb: c\u0085\t#\u2028", "QUOTE": "'\"{{ .x }}"},
    "actor": {"learning_rate": 1e-6, "weight_decay": 0, "min_lr_ratio": 0.0},
    "trainer": {"total_steps": 2**52 + 1},
    "rollout": {"temperature": 1.0, "engine_kwargs": {"big": 1e16, "tiny": 1e-7, "list": [1, 2.5, "x"], "nested": {"flag": False}}},
}  # fmt: skip


def experiment(kind, *layers, **options):
    return one(objects(kind, *layers, **options), "ConfigMap")["data"]["exp.json"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_trainer_reads_the_very_spec_that_the_file_says_under_the_release_s_name(name):
    loaded = load_text(EXPERIMENTS[name].read_text())
    mounted = load_text(experiment(loaded.spec.kind, experiment=name), is_json=True)
    assert dump_spec(mounted.spec) == {**dump_spec(loaded.spec), "name": RUN}


def test_people_can_read_the_experiment_line_by_line_in_what_helm_renders():
    assert '\n      "kind": "opd",\n' in template("opd", IMAGE).stdout


@pytest.mark.slow
@pytest.mark.parametrize("odd", ["\x7f", "\x85", "\xa0", "\ufeff", "\u2028", "\ud7ff", "日本", "\t\r\n", "a: #b"])
def test_a_character_that_yaml_takes_in_quotes_alone_arrives(odd):
    text = experiment("opd", {"env": {"ODD": f"a{odd}b"}})
    assert json.loads(text)["env"]["ODD"] == f"a{odd}b"


def test_numbers_and_strings_arrive_as_they_were_written():
    mounted = dump_spec(load_text(experiment("opd", ODD), is_json=True).spec)
    assert mounted["env"] == ODD["env"]
    assert mounted["actor"]["learning_rate"] == 1e-6
    assert mounted["actor"]["weight_decay"] == 0
    assert mounted["seed"] == 0
    assert mounted["trainer"]["total_steps"] == 2**52 + 1
    assert mounted["rollout"]["engine_kwargs"] == ODD["rollout"]["engine_kwargs"]


@pytest.mark.parametrize("kind", ["opd", "pipeline"])
def test_the_charts_own_part_is_kept_from_the_trainer(kind):
    tree = json.loads(experiment(kind, {"global": {"x": 1}, "enabled": True}))
    assert not {"cluster", "global", "enabled", "matrix"} & tree.keys()


def test_the_experiment_cannot_be_edited_under_a_running_trainer():
    assert one(objects("opd"), "ConfigMap")["immutable"] is True


@pytest.mark.parametrize("kind", ["opd", "convert"])
def test_every_object_says_which_run_and_experiment_it_belongs_to(kind):
    for tree in objects(
        kind, {"name": "math-3", "cluster": {"labels": {"team": "a"}, "podMonitor": {"enabled": True}}}
    ):
        labels = tree["metadata"]["labels"]
        assert labels["opd/run-id"] == labels["app.kubernetes.io/instance"] == RUN
        assert (labels["opd/experiment"], labels["opd/kind"]) == ("math-3", kind)
        assert (labels["app.kubernetes.io/name"], labels["app.kubernetes.io/managed-by"]) == (kind, "Helm")
        assert labels["team"] == "a"
        assert tree["metadata"]["namespace"] == "opd"


def test_the_chart_s_own_labels_are_not_overridden():
    job = one(objects("opd", {"cluster": {"labels": {"opd/run-id": "other"}}}), "RayJob")
    assert job["metadata"]["labels"]["opd/run-id"] == RUN


def test_the_rayjob_is_no_hook_and_carries_the_experiment_s_hash():
    job = one(objects("opd", {"cluster": {"annotations": {"a/b": "c"}}}), "RayJob")
    assert job["metadata"]["annotations"].keys() == {"opd/experiment-sha256", "a/b"}
    other = one(objects("opd", {"seed": 7}), "RayJob")["metadata"]["annotations"]["opd/experiment-sha256"]
    assert other != job["metadata"]["annotations"]["opd/experiment-sha256"]


def notes(kind, *sets):
    options = ["--dry-run=client", "--namespace", "opd", "-f", str(EXPERIMENTS[EXAMPLE_OF[kind]])]
    options += ["--set", f"cluster.image.ref={IMAGE['cluster']['image']['ref']}", *(f"--set={item}" for item in sets)]
    done = helm("install", RUN, str(CHARTS / kind), *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_the_notes_hold_the_exact_commands_of_this_run():
    text = notes("opd", "cluster.deadlines.activeSeconds=9000", "cluster.deadlines.preRunningSeconds=600")
    for command in (
        "opdctl status my-run -n opd",
        "kubectl logs -f job/my-run -n opd",
        "opdctl collect my-run -n opd",
        "kubectl delete rayjob my-run -n opd --ignore-not-found && helm uninstall my-run -n opd",
        "kubectl wait --for=create job/my-run -n opd",
        "kubectl delete pvc my-run-checkpoints -n opd",
        "9000 s after its start",
    ):
        assert command in text
    assert "kubectl patch" not in text  # a run with deletion rules cannot be suspended


def test_the_notes_follow_mode_and_lifecycle():
    text = notes("eval", "cluster.lifecycle=suspendable", "cluster.checkpoints.claim=mine")
    assert "-c log --tail=-1 -l opd/run-id=my-run,app.kubernetes.io/component=head" in text
    assert "kubectl patch rayjob my-run" in text
    assert "delete pvc" not in text


def test_the_notes_leave_suspending_to_kueue_where_it_holds_the_run():
    text = notes("opd", "cluster.lifecycle=suspendable", "cluster.queue.manager=kueue", "cluster.queue.name=training")
    assert "kubectl patch rayjob" not in text


def test_metrics_are_scraped_only_on_request():
    assert "PodMonitor" not in {tree["kind"] for tree in objects("opd")}
    monitor = one(
        objects("opd", {"cluster": {"podMonitor": {"enabled": True, "labels": {"release": "p"}}}}), "PodMonitor"
    )
    assert monitor["metadata"]["labels"]["release"] == "p"
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["interval"]) == ("metrics", "30s")
    [label] = endpoint["relabelings"]
    assert label == {"sourceLabels": ["__meta_kubernetes_pod_label_opd_run_id"], "targetLabel": "run"}
    assert monitor["spec"]["selector"]["matchLabels"] == {"opd/run-id": RUN}


def test_every_run_below_an_umbrella_chart_has_its_own_name(tmp_path):
    (tmp_path / "charts").mkdir()
    shutil.copytree(CHARTS / "opd", tmp_path / "charts/opd")
    dependencies = [
        {"name": "opd", "version": "0.1.0", "alias": alias, "condition": f"{alias}.enabled"}
        for alias in ("a", "b", "c")
    ]
    chart = {"apiVersion": "v2", "name": "team", "version": "0.1.0", "dependencies": dependencies}
    (tmp_path / "Chart.yaml").write_text(json.dumps(chart))
    run = {"kind": "opd", "trainer": {"gpus_per_node": 4}, **IMAGE}
    (tmp_path / "values.yaml").write_text(
        json.dumps({"a": {**run, "enabled": True}, "b": run, "c": {"enabled": False}})
    )
    done = helm("template", "team", str(tmp_path))
    assert done.returncode == 0, done.stderr
    jobs = {tree["metadata"]["name"]: tree["spec"] for tree in parsed(done.stdout) if tree["kind"] == "RayJob"}
    assert jobs.keys() == {"team-a", "team-b"}
    assert worker(jobs["team-a"])["resources"]["limits"]["nvidia.com/gpu"] == 4


def test_azures_webhook_finds_the_pods_by_their_label():
    label = {"azure.workload.identity/use": "true"}
    for role, pod in pod_templates(objects("opd", {"cluster": {"serviceAccount": {"identity": "azure"}}})):
        assert (label.items() <= pod["metadata"]["labels"].items()) == (role != "submitter")


def test_the_account_can_carry_a_cloud_role():
    layer = {"cluster": {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}}}}
    account = one(objects("opd", layer), "ServiceAccount", RUN)
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn"}
