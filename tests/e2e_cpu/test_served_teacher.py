"""Distillations from a served teacher, next to the same ones from the same teacher in the ranks."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.e2e_cpu import runs
from tests.e2e_cpu.carried import SETS
from tests.e2e_cpu.runs import run
from tests.teacher_server import serving

from opd.data.toy import TEACHER_DIR
from opd.data.toy.task import write_parquet

NUM_STEPS = 6
STEPS = (f"trainer.total_steps={NUM_STEPS}", "trainer.val_before_train=false")


def divergences(outcome, num_steps: int = NUM_STEPS) -> list[float]:
    found = [row["opd/divergence"] for row in outcome.must_be_clean().steps]
    assert len(found) == num_steps
    return found


def take_teacher_out(folder, monkeypatch) -> None:
    """Let the next runs begin from the experiment file without its teacher."""
    without = (runs.SPECS / "opd.yaml").read_text().replace("teacher: {path: toy://teacher}\n", "")
    (folder / "opd.yaml").write_text(without)
    monkeypatch.setattr(runs, "SPECS", folder)


def stages(kind: str) -> str:
    return (
        f"opd.stages=[{{until: 3, loss_type: {kind}}}, {{loss_type: sampled_reverse_kl, loss_params: {{baseline: 0}}}}]"
    )


def test_each_step_has_the_divergence_of_the_same_teacher_in_the_ranks(tmp_path):
    in_ranks = (stages("topk_reverse_kl"), "opd.top_k=64")
    with serving(str(TEACHER_DIR)) as keys:
        of = [f"teacher.{key}" for key in (*keys, "top_k=64")]
        served = divergences(run(tmp_path / "served", "opd", *STEPS, stages("reverse_kl"), *of))
    assert served == pytest.approx(divergences(run(tmp_path / "ranks", "opd", *STEPS, *in_ranks)), rel=1e-3)


def test_carried_rows_of_two_teachers_of_which_one_is_served_train_as_from_one_in_the_ranks(tmp_path, monkeypatch):
    path, _ = write_parquet(tmp_path, seed=1)
    table = pq.read_table(path)
    sources = pa.array(["even" if row % 2 else "odd" for row in range(len(table))])
    pq.write_table(table.set_column(table.schema.get_field_index("data_source"), "data_source", sources), path)
    # Of the teacher's likely tokens alone, so that the served one's events lack next to nothing.
    sets = (*SETS, *STEPS, "rollout.temperature=1", "opd.loss_type=forward_kl", f"data.train=[{path}]")
    alone = divergences(run(tmp_path / "ranks", "opd", *sets))
    take_teacher_out(tmp_path, monkeypatch)
    with serving(str(TEACHER_DIR)) as keys:
        of = [f"teachers.a.{key}" for key in (*keys, "top_k=64")]
        several = (*of, "teachers.b.path=toy://teacher", "route.to={even: a, odd: b}")
        mixed = run(tmp_path / "mixed", "opd", *sets, *several)
    assert divergences(mixed) == pytest.approx(alone, rel=1e-3)
    rows = [[row[f"opd/teacher/{name}/rows"] for row in mixed.steps] for name in "ab"]
    assert all(sum(both) == 16 and min(both) > 0 for both in zip(*rows, strict=True))


def test_a_student_learns_from_the_stored_answers_of_a_killed_evaluation_without_teacher_and_server(
    tmp_path, monkeypatch
):
    path, _ = write_parquet(tmp_path, seed=1)
    pq.write_table(pq.read_table(path).slice(0, 160), path)
    asked = (f"data.val=[{path}]", "data.max_val_samples=160", "data.train_batch_size=16", "rollout.val.num_samples=1")
    seeds, folder = list[int](), tmp_path / "answers"
    stored = folder / "out/store/eval/eval/generations.parquet"
    with serving(str(TEACHER_DIR), seeds) as keys:
        sets = (*asked, *(f"teacher.{key}" for key in (*keys, "top_k=16")))
        runs.run_and_kill(part := stored.parent / "events/0001-00000000.parquet", folder, "eval", *sets)
        before, num_written = pq.read_table(part), len(seeds)
        run(folder, "eval", *sets).must_be_clean()
    answers = pq.read_table(stored)
    assert 0 < len(before) < len(answers) == 160
    assert len(seeds) == 160 + num_written - len(before)  # some of the batch that the kill cut are asked again
    assert not list(stored.parent.glob("events/*"))
    take_teacher_out(tmp_path, monkeypatch)
    read = (f"opd.teacher_answers=[{stored}]", "opd.stages=[{rollouts: teacher}]", f"data.train=[{path}]")
    sets = (
        *read,
        "data.train_batch_size=64",
        "trainer.total_steps=20",
        "trainer.val_before_train=false",
        "opd.loss_type=forward_kl",
    )
    found = divergences(run(tmp_path / "opd", "opd", *sets), 20)
    assert sum(found[-5:]) < sum(found[:5]) / 2
