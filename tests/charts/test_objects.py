"""The small objects: the experiment as the trainer gets it, labels and notes."""

import json
import shutil

import pytest
from tests.charts.helm import CHARTS, EXAMPLE_OF, EXPERIMENTS, IMAGE, RUN, helm, objects, one, parsed, template, worker

from opd.experiment import dump_spec, load_text

ODD = {
    "name": "odd",
    "seed": 0,
    "env": {"RATIO": "1:30", "FLAG": "no", "HEX": "0x1f", "OCTAL": "010", "EMPTY": "", "LINES": "a\nb: c\u0085\t#\u2028\x7f\xa0\ufeff日本\r", "QUOTE": "'\"{{ .x }}"},
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


def test_numbers_and_strings_arrive_as_they_were_written():
    mounted = dump_spec(load_text(experiment("opd", ODD), is_json=True).spec)
    for section in ("env", "actor", "trainer", "rollout"):
        assert ODD[section].items() <= mounted[section].items()
    assert mounted["seed"] == 0
    assert '\n      "kind": "opd",\n' in template("opd", IMAGE).stdout, "people read it line by line"


@pytest.mark.parametrize("kind", ["opd", "pipeline"])
def test_the_charts_own_part_is_kept_from_the_trainer(kind):
    tree = json.loads(experiment(kind, {"global": {"x": 1}, "enabled": True}))
    assert not {"cluster", "global", "enabled", "matrix"} & tree.keys()
    assert one(objects(kind), "ConfigMap")["immutable"] is True


@pytest.mark.parametrize("kind", ["opd", "convert"])
def test_every_object_says_which_run_and_experiment_it_belongs_to(kind):
    values = {"labels": {"team": "a", "opd/run-id": "other"}}
    wanted = {
        "opd/run-id": RUN,
        "opd/experiment": "math-3",
        "opd/kind": kind,
        "app.kubernetes.io/instance": RUN,
        "app.kubernetes.io/name": kind,
        "app.kubernetes.io/managed-by": "Helm",
        "team": "a",
    }
    for tree in objects(kind, {"name": "math-3", "cluster": values}):
        assert wanted.items() <= tree["metadata"]["labels"].items()
        assert tree["metadata"]["namespace"] == "opd"


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
    ):
        assert command in text


def test_the_notes_of_a_run_on_a_claim_of_the_user_delete_none():
    text = notes("eval", "cluster.checkpoints.claim=mine")
    assert "delete pvc" not in text


def test_every_run_below_an_umbrella_chart_has_its_own_name(tmp_path):
    (tmp_path / "charts").mkdir()
    shutil.copytree(CHARTS / "opd", tmp_path / "charts/opd")
    aliases = [{"alias": alias, "condition": f"{alias}.enabled"} for alias in ("a", "b", "c")]
    dependencies = [{"name": "opd", "version": "0.1.0", **alias} for alias in aliases]
    chart = {"apiVersion": "v2", "name": "team", "version": "0.1.0", "dependencies": dependencies}
    (tmp_path / "Chart.yaml").write_text(json.dumps(chart))
    run = {"kind": "opd", "trainer": {"gpus_per_node": 4}, **IMAGE}
    values = {"a": {**run, "enabled": True}, "b": run, "c": {"enabled": False}}
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    done = helm("template", "team", str(tmp_path))
    assert done.returncode == 0, done.stderr
    jobs = {tree["metadata"]["name"]: tree["spec"] for tree in parsed(done.stdout) if tree["kind"] == "RayJob"}
    assert jobs.keys() == {"team-a", "team-b"}
    assert worker(jobs["team-a"])["resources"]["limits"]["nvidia.com/gpu"] == 4
