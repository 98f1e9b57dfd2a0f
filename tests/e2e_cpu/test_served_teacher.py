"""Distillations from a served teacher, next to the same ones from the same teacher in the ranks."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.benchmarks.served_pairs import pair
from tests.e2e_cpu import runs
from tests.e2e_cpu.carried import SETS
from tests.e2e_cpu.runs import run
from tests.teacher_server import serving

from opd.data.toy import TEACHER_DIR
from opd.data.toy.task import write_parquet

NUM_STEPS = 6
STEPS = (f"trainer.total_steps={NUM_STEPS}", "trainer.val_before_train=false")


def divergences(outcome) -> list[float]:
    found = [row["opd/divergence"] for row in outcome.must_be_clean().steps]
    assert len(found) == NUM_STEPS
    return found


def stages(kind: str) -> str:
    return (
        f"opd.stages=[{{until: 3, loss_type: {kind}}}, {{loss_type: sampled_reverse_kl, loss_params: {{baseline: 0}}}}]"
    )


def test_each_step_has_the_divergence_of_the_same_teacher_in_the_ranks(tmp_path):
    in_ranks = (stages("topk_reverse_kl"), "opd.top_k=64")
    served, ranks = map(divergences, pair(tmp_path, *STEPS, stages("reverse_kl"), top_k=64, in_ranks=in_ranks))
    assert served == pytest.approx(ranks, rel=1e-3)


def test_carried_rows_of_two_teachers_of_which_one_is_served_train_as_from_one_in_the_ranks(tmp_path, monkeypatch):
    path, _ = write_parquet(tmp_path, seed=1)
    table = pq.read_table(path)
    sources = pa.array(["even" if row % 2 else "odd" for row in range(len(table))])
    pq.write_table(table.set_column(table.schema.get_field_index("data_source"), "data_source", sources), path)
    # Of the teacher's likely tokens alone, so that the served one's events lack next to nothing.
    sets = (*SETS, *STEPS, "rollout.temperature=1", "opd.loss_type=forward_kl", f"data.train=[{path}]")
    alone = divergences(run(tmp_path / "ranks", "opd", *sets))
    without = (runs.SPECS / "opd.yaml").read_text().replace("teacher: {path: toy://teacher}\n", "")
    (tmp_path / "opd.yaml").write_text(without)
    monkeypatch.setattr(runs, "SPECS", tmp_path)
    with serving(str(TEACHER_DIR)) as keys:
        of = [f"teachers.a.{key}" for key in (*keys, "top_k=64")]
        several = (*of, "teachers.b.path=toy://teacher", "route.to={even: a, odd: b}")
        mixed = run(tmp_path / "mixed", "opd", *sets, *several)
    assert divergences(mixed) == pytest.approx(alone, rel=1e-3)
    rows = [[row[f"opd/teacher/{name}/rows"] for row in mixed.steps] for name in "ab"]
    assert all(sum(both) == 16 and min(both) > 0 for both in zip(*rows, strict=True))
