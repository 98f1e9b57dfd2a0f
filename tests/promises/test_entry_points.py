"""Entry points: `python -m opd.main_opd`, and the commands of the card (make, opdctl, helm) with one file."""

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.promises.commands import ROOT, dry_run, helm, helm_program, launch, make, opdctl, plain, python, run
from tests.promises.test_variables import FILES

# The command line of the original's OPD script, on the toy task and a CPU.
ORIGINAL = (Path(__file__).parent / "specs/original_overrides.txt").read_text().split()
TEACHER = "src/opd/data/toy/assets/teacher"
# verl's configs by their folder: Hydra then need not import verl, which takes ten seconds.
CONFIGS = Path(importlib.util.find_spec("verl").submodule_search_locations[0]) / "trainer/config"  # type: ignore


def main_opd(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(python("opd.main_opd", *words), variables=variables)


def composed(*words: str, **variables: str) -> dict:
    """Return the config that verl would get: `--cfg job` prints it and starts nothing."""
    done = main_opd(*words, f"hydra.searchpath=[file://{CONFIGS}]", "--cfg", "job", **variables)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def test_main_opd_takes_the_originals_overrides_and_the_teacher_by_its_variable():
    tree = composed(*ORIGINAL, TEACHER_MODEL_PATH=TEACHER)
    for word in ORIGINAL:
        key, _, text = word.lstrip("+").partition("=")
        if key.startswith("opd."):
            continue
        value = tree
        for name in key.split("."):
            value = value[name]
        typed = plain(text)
        assert value in (typed, [typed]) or value == pytest.approx(typed), word


def test_main_opd_requires_the_teacher_and_names_the_variable():
    done = main_opd(*ORIGINAL)
    assert done.returncode == 2
    assert "the key is required" in done.stderr
    assert "TEACHER_MODEL_PATH" in done.stderr
    assert not done.stdout


def test_main_opd_refuses_what_the_distillation_cannot_use():
    wrong = {"opd.loss_type": "kl", "opd.chunk_size": "0", "opd.reward_beta": "-1"}
    words = [word for word in ORIGINAL if word.partition("=")[0] not in wrong]
    teacher = f"+actor_rollout_ref.ref.model.path={TEACHER}"  # the original's key
    done = main_opd(*words, teacher, *(f"{key}={value}" for key, value in wrong.items()))
    assert done.returncode == 2
    assert "3 problems" in done.stderr
    for key, value in wrong.items():
        assert re.search(rf"  {re.escape(key)} .*\n    value: \"?{value}\"?\n    rule:  ", done.stderr), key


EXPERIMENT = """\
kind: opd
model: {path: Qwen/Qwen3-1.7B}
teacher: {path: Qwen/Qwen3-8B}
data: {train: [s3://data/train.parquet], val: [s3://data/val.parquet]}
trainer: {total_steps: 10, gpus_per_node: 8}
store: {url: s3://experiments/opd}
cluster:
  image: {ref: "registry.example.com/opd@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
  secrets: {store: experiment-store}
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("experiment") / "exp.yaml"
    file.write_text(EXPERIMENT)
    return file


@pytest.fixture(scope="module")
def rendered(experiment: Path) -> str:
    done = run(helm("template", "opd-run", ROOT / "charts/opd", "-f", experiment))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.helm
def test_helm_turns_the_experiment_file_into_one_rayjob_of_the_releases_name(rendered):
    trees = [tree for tree in yaml.safe_load_all(rendered) if tree]
    [job] = [tree for tree in trees if tree["kind"] == "RayJob"]
    assert job["metadata"]["name"] == "opd-run"
    [worker] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    [container] = worker["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example.com/opd@sha256:")
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == 8


@pytest.mark.helm
def test_the_pods_start_the_run_that_the_file_says(rendered, experiment):
    [config] = [tree for tree in yaml.safe_load_all(rendered) if tree and tree["kind"] == "ConfigMap"]
    [text] = config["data"].values()
    assert json.loads(text)["name"] == "opd-run"
    in_pods, here = dry_run(text), dry_run(EXPERIMENT, "--set", "name=opd-run")
    assert in_pods.code == here.code == 0
    assert in_pods.values == here.values


@pytest.mark.helm
def test_render_prints_what_helm_prints(rendered, experiment):
    words = opdctl("render", experiment, "--name", "opd-run")
    done = run(words, variables={"OPDCTL_HELM": str(helm_program())})
    assert done.returncode == 0, done.stderr
    assert done.stdout == rendered


@pytest.mark.helm
def test_the_chart_refuses_the_wrong_value_that_the_start_refuses(experiment):
    wrong = EXPERIMENT.replace("gpus_per_node: 8}", "gpus_per_node: 8}\nopd: {loss_type: kl}")
    (experiment.parent / "wrong.yaml").write_text(wrong)
    done = run(helm("template", "opd-run", ROOT / "charts/opd", "-f", experiment.parent / "wrong.yaml"))
    assert done.returncode != 0
    assert not done.stdout
    assert "loss_type" in done.stderr
    assert dry_run(wrong).code == 2


@pytest.mark.helm
def test_the_tool_database_is_a_volume_at_database_dir_on_every_ray_pod(experiment):
    agent = EXPERIMENT.replace("kind: opd", "kind: opd-agent\nagent: {database_dir: /databases/travel}")
    (experiment.parent / "agent.yaml").write_text(
        agent + "  mounts: [{claim: travel-database, path: /databases/travel}]\n"
    )
    done = run(helm("template", "opd-run", ROOT / "charts/opd-agent", "-f", experiment.parent / "agent.yaml"))
    assert done.returncode == 0, done.stderr
    [job] = [tree for tree in yaml.safe_load_all(done.stdout) if tree and tree["kind"] == "RayJob"]
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        [mount] = [item for item in pod["containers"][0]["volumeMounts"] if item["mountPath"] == "/databases/travel"]
        assert mount["readOnly"] is True
        [volume] = [item for item in pod["volumes"] if item["name"] == mount["name"]]
        assert volume["persistentVolumeClaim"] == {"claimName": "travel-database", "readOnly": True}


def test_make_submit_hands_the_file_to_opdctl_and_make_run_to_the_trainer():
    assert re.search(r"\S*/opdctl submit x\.yaml -n team$", make("submit", "EXP=x.yaml", "ARGS=-n team")[-1])
    assert re.search(
        r"\S*python -m opd\.launch x\.yaml --set seed=7$", make("run", "EXP=x.yaml", "ARGS=--set seed=7")[-1]
    )
    assert re.search(r"\S*/opdctl collect my-run *$", make("collect", "EXP=my-run")[-1])


def test_make_quickstart_distils_on_this_machine():
    assert re.search(r"\S*python -m opd\.quickstart --seed 1$", make("quickstart")[-1])


def test_a_wrong_key_is_named_by_path_value_rule_fix_and_nearest_key():
    started = dry_run("kind: opd\nmodel: {path: m}\nteacher: {path: t}\nopd:\n  loss_tpye: jsd\n  chunk_size: 0\n")
    assert started.code == 2
    first = r"  opd\.loss_tpye \(line 5\)\n    value: \"jsd\"\n    rule:  .+\n    fix:   did you mean opd\.loss_type\?"
    second = r"  opd\.chunk_size \(line 6\)\n    value: 0\n    rule:  .+\n    fix:   .+"
    assert re.search(first, started.err)
    assert "2 problems" in started.err
    assert re.search(second, started.err)
    assert "Traceback" not in started.err
    assert not started.values


def test_a_file_that_is_not_there_ends_the_start_with_exit_code_2(tmp_path):
    done = run(launch(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert "no such file" in done.stderr


def test_the_tool_ends_with_1_where_a_run_is_missing_and_with_2_where_the_usage_is_wrong(tmp_path):
    (tmp_path / "store").mkdir()
    missing = run(opdctl("collect", "nope", "--store", "store"), cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("error: no run 'nope'")
    wrong = run(opdctl("collect", "nope", "--store", "store", "-f", "x.xlsx"), cwd=tmp_path)
    assert wrong.returncode == 2
    assert "x.xlsx" in wrong.stderr


def test_every_kind_of_the_seed_and_the_card_is_a_kind_of_file():
    started = dry_run("kind: nonsense\n")
    assert started.code == 2
    for kind in ("opd", "opd-agent", "grpo", "sft", "eval", "passrate", "convert", "pipeline"):
        assert re.search(rf"\b{kind}\b", started.err)
    assert dry_run(FILES["convert"]).code == 0
