"""A pipeline's stages: the order of their references, their share of the pipeline, and faults found before any runs."""

from pathlib import Path
from typing import Any

import pytest
from tests.minimal import MINIMAL

from opd.experiment import PipelineSpec, SpecError, load_spec, load_text, parse_tree
from opd.experiment.pipeline import Reference, Stage, all_sizes, before_it_runs, stages_of
from opd.experiment.reader import read_text

PIPELINES = Path(__file__).parents[2] / "manifests" / "pipelines"
TEXT = """\
kind: pipeline
name: bridge
seed: 5
store: {url: s3://bucket/runs, region: here}
output: {root: out}
env: {A: b}
stages:
  distil:
    kind: opd
    model: {path: "${stages.warmup.checkpoint}"}
    teacher: {path: big}
  answers:
    kind: eval
    model: {path: big}
    data: {val: train.parquet}
  warmup:
    kind: sft
    seed: 6
    model: {path: small}
    data: {train: train.parquet, val: val.parquet}
    sft: {teacher_answers: ["${stages.answers.generations}"]}
"""


def spec_of(*sets: str) -> PipelineSpec:
    found = load_text(TEXT, sets=sets).spec
    assert isinstance(found, PipelineSpec)
    return found


def controls_of(path: Path) -> dict[str, list[str]]:
    """The `--set`s of each control that a shipped file's head names."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("#   ")]
    return {name.strip("# "): [one.strip() for one in sets] for name, *sets in (line.split("--set ") for line in lines)}


def stages(*sets: str) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages_of(spec_of(*sets))}


def problem(*sets: str) -> Any:
    with pytest.raises(SpecError) as caught:
        spec_of(*sets)
    [only] = caught.value.problems
    return only


def test_stages_run_in_the_order_of_their_references_with_a_conversion_where_a_model_is_wanted():
    assert list(stages()) == ["answers", "warmup", "warmup-model", "distil"]


def test_a_stage_has_its_place_and_its_seed_from_the_pipeline_and_may_have_a_seed_of_its_own():
    found = stages()
    distil = found["distil"].spec
    assert (distil.name, distil.seed, distil.env, distil.store.region) == ("bridge-distil", 5, {"A": "b"}, "here")
    assert (distil.store.url, distil.output.root) == ("s3://bucket/runs/bridge/stages", "out/bridge/stages")
    assert found["warmup"].spec.seed == 6


def test_a_reference_becomes_what_the_stage_left_and_the_rest_of_the_spec_is_as_written():
    left = {
        Reference("warmup", "checkpoint"): "s3://bucket/runs/bridge/stages/bridge-warmup/checkpoints/global_step_9",
        Reference("warmup-model", "model"): "folder",
        Reference("answers", "generations"): "answers.parquet",
    }
    resolved = {name: stage.resolved(left.__getitem__) for name, stage in stages().items()}
    assert resolved["warmup"].sft.teacher_answers == ("answers.parquet",)
    assert resolved["distil"].model.path == "folder"
    convert = resolved["warmup-model"].convert
    checkpoint = left[Reference("warmup", "checkpoint")]
    assert (convert.checkpoint, convert.target) == (checkpoint, f"{checkpoint}-huggingface")
    tree = read_text(TEXT, origin="").tree["stages"]["distil"]
    alone = {**tree, "model": {"path": "folder"}, "name": "bridge-distil", "seed": 5, "env": {"A": "b"}}
    alone["store"] = {"url": "s3://bucket/runs/bridge/stages", "region": "here"}
    alone["output"] = {"root": "out/bridge/stages"}
    assert resolved["distil"] == parse_tree(alone).spec


def test_before_it_runs_a_model_that_a_stage_leaves_has_the_shapes_of_the_one_that_it_began_with():
    more = "stages.last={kind: grpo, model: {path: '${stages.distil.checkpoint}'}}"
    planned = {spec.name: spec for spec in before_it_runs(stages_of(spec_of(more)))}
    assert planned["bridge-distil"].model.path == "small"
    assert planned["bridge-last"].model.path == "small"
    assert planned["bridge-warmup"].sft.teacher_answers == ("stages://answers/generations",)


@pytest.mark.parametrize(
    ("sets", "path", "words"),
    [
        ("stages.distil.model.path='${stages.warmpu.checkpoint}'", "stages.distil.model.path", "${stages.warmup.checkpoint}?"),
        ("stages.distil.model.path='${stages.warmup.answers}'", "stages.distil.model.path", "what a stage of its kind leaves"),
        ("stages.answers.model.path='${stages.distil.checkpoint}'", "stages", "wait for each other"),
        ("stages.warmup.trainer.save_freq=-1", "stages.warmup.trainer.save_freq", "1 or more"),
        ("stages.answers.eval.save_generations=false", "stages.answers.eval.save_generations", "to true"),
        ("stages.warmup.name=mine", "stages.warmup.name", "at the top"),
        ("stages.distil.teacher.serve={gpus: 2}", "stages.distil.teacher.serve", "and of no stage"),
        ("stages.more={kind: pipeline}", "stages.more.kind", "no pipeline"),
        ("stages.warmup.actor.learning_rat=1", "stages.warmup.actor.learning_rat", "learning_rate"),
        ("stages.export={kind: convert, convert: {checkpoint: '${stages.warmup.checkpoint}'}}",
         "stages.warmup-model.convert.target", "stage export converts into the same folder"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_before_any_stage_runs_under_the_key_of_the_pipelines_file(sets, path, words):
    found = problem(sets)
    assert found.path == path
    assert words in f"{found.rule} {found.fix}"


def test_a_node_needs_three_cpus_a_rank_and_a_conversion_has_no_workers():
    found = {"wide": {**MINIMAL["opd"], "trainer": {"nnodes": 2, "gpus_per_node": 2}}, "last": MINIMAL["convert"]}
    [sizes] = all_sizes(parse_tree({"kind": "pipeline", "name": "p", "stages": found}).spec)
    assert (sizes.num_nodes, sizes.gpus_per_node, sizes.node_cpus) == (2, 2, 6)


SPARSE_TO_DENSE = sorted(PIPELINES.glob("sparse-to-dense-*.yaml"))
RUN = {
    "": "teacher_rl answers warmup distil",
    "raw teacher": "answers warmup distil",
    "SFT'd teacher": "teacher_sft answers warmup distil",
    "RL'd teacher": "teacher_rl answers warmup distil",
    "no warm-up": "teacher_rl distil",
    "no OPD, forward KL": "teacher_rl answers warmup",
    "no OPD, hard SFT": "teacher_rl answers hard_sft",
    "stage 3 on new labels": "teacher_rl answers warmup distil student_rl",
    "replay, stage 3 on 1H": "teacher_rl answers warmup distil student_rl",
    "GRPO of the student alone": "student_rl",
}


@pytest.mark.parametrize("control", RUN)
@pytest.mark.parametrize("path", SPARSE_TO_DENSE, ids=lambda path: path.stem)
def test_each_control_of_sparse_to_dense_runs_its_stages_and_measures_the_last_student(path, control):
    sets = controls_of(path).get(control, [])
    assert bool(sets) == bool(control)
    found = {stage.name: stage for stage in stages_of(load_spec(path, sets=sets).spec)}
    assert [name for name in found if not name.endswith("-model") and name != "final"] == RUN[control].split()
    *_, last = RUN[control].split()
    assert list(found["final"].references.values()) == [Reference(f"{last}-model", "model")]
    trained = [name for name in ("teacher_sft", "teacher_rl") if name in found]
    for name in found.keys() & {"warmup", "distil"}:
        [teacher] = [one for (key, _), one in found[name].references.items() if key == "teacher.path"] or [None]
        assert teacher == (Reference(f"{trained[-1]}-model", "model") if trained else None)
    for name in found.keys() & {"teacher_sft", "teacher_rl", "student_rl"}:
        part = 2 if (control, name) == ("stage 3 on new labels", "student_rl") else 1
        assert found[name].spec.data.split.part == part


SKIP = "stages.warmup.skip=true"


def test_who_takes_the_model_of_a_skipped_stage_gets_the_one_that_it_would_have_begun_with():
    assert list(stages(SKIP)) == ["answers", "distil"]
    assert stages(SKIP)["distil"].spec.model.path == "small"
    pinned = stages(SKIP, "stages.warmup.model.revision=abc")["distil"].spec.model
    assert (pinned.path, pinned.revision) == ("small", "abc")
    several = "stages.distil={kind: opd, model: {path: m}, teachers: {own: {path: '${stages.warmup.checkpoint}'}}, route: {to: {a: own}}}"
    assert stages(SKIP, several)["distil"].spec.teachers["own"].path == "small"


@pytest.mark.parametrize(
    ("sets", "path", "words"),
    [
        (["stages.answers.skip=true"], "stages.warmup.sft.teacher_answers", "that is not skipped"),
        ([SKIP, "stages.distil.skip=true", "stages.answers.skip=true"], "stages", "all of them are skipped"),
        ([SKIP, "stages.distil.skip=true", "stages.warmup.model.path='${stages.distil.checkpoint}'",
          "stages.answers.model.path='${stages.warmup.checkpoint}'"], "stages.answers.model.path", "that is not skipped"),
        (["stages.warmup.skip=maybe"], "stages.warmup.skip", "no such key"),
    ],
)  # fmt: skip
def test_what_a_skipped_stage_cannot_leave_is_said_before_any_stage_runs(sets, path, words):
    with pytest.raises(SpecError) as caught:
        spec_of(*sets)
    found = {problem.path: problem.rule for problem in caught.value.problems}
    assert words in found[path]
