"""A teacher that is the student: when it gets the student's weights, and that a resumed worker has the same one, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from tests.update.batches import uneven_rows
from tests.update.models import save_model
from tests.update.workers import Case, run_cases

from opd.errors import CheckpointError
from opd.experiment.sections import Teacher
from opd.update.self_teachers import SelfTeachers, refresh_metrics, teachers_step


@pytest.mark.parametrize(("every", "expected"), [(0, [0] * 7), (1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 0, 0, 3, 3, 3, 6])])
def test_a_teacher_has_the_weights_of_the_last_multiple_before_a_step(every, expected):
    assert [teachers_step(step, every) for step in range(1, 8)] == expected


def test_metrics_tell_the_step_of_each_teacher_that_is_refreshed():
    plain, often = (Teacher(path="m", dtype="fp32", offload=False, refresh_every=every) for every in (0, 2))
    assert refresh_metrics({"teacher": plain}, 6) == {}
    assert refresh_metrics({"teacher": often}, 6) == {"opd/teacher_step": 4}
    assert refresh_metrics({"teachers.a": plain, "teachers.b": often}, 4) == {"opd/teacher/b/step": 2}


class _Engine:
    """A teacher of one weight, as `SelfTeachers` sees an engine."""

    def __init__(self, value: float) -> None:
        self.weight = torch.full((2,), value)

    def local_weights(self) -> dict[str, torch.Tensor]:
        return {"w": self.weight}

    def load_local_weights(self, weights: Mapping[str, torch.Tensor], whose: str) -> None:
        self.weight.copy_(weights["w"])


def _teachers(value: float, every: int) -> SelfTeachers:
    return SelfTeachers(engines={"teacher": _Engine(value)}, every={"teacher": every})


@pytest.mark.parametrize(("step", "is_saved"), [(2, False), (3, False), (4, True), (5, True), (6, False), (7, True)])
def test_a_checkpoint_has_the_teacher_only_where_it_is_neither_the_start_nor_the_student(tmp_path, step, is_saved):
    actor = tmp_path / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    _teachers(7.0, 3).save(actor, step=step, rank=1, world=2)
    assert [path.name for path in actor.iterdir()] == ["teacher_world_size_2_rank_1.pt"] * is_saved
    resumed = _teachers(0.0, 3)
    resumed.load(actor, rank=1, world=2)
    assert resumed.engines["teacher"].local_weights()["w"].tolist() == [7.0 * is_saved] * 2


def test_a_checkpoint_that_lacks_the_teacher_is_refused_by_the_files_name(tmp_path):
    actor = tmp_path / "global_step_4" / "actor"
    actor.mkdir(parents=True)
    with pytest.raises(
        CheckpointError, match=r"teacher_world_size_1_rank_0.pt: not there, and refreshed teachers \(teacher\)"
    ):
        _teachers(0.0, 3).load(actor, rank=0, world=1)
    _teachers(0.0, 0).load(actor, rank=0, world=1)


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def refreshed(request, tmp_path_factory) -> dict[str, dict]:
    base = tmp_path_factory.mktemp("models")
    student = save_model(base / "student", hidden=32, layers=2, rows=64, tied=False, seed=1)
    other = save_model(base / "other", hidden=48, layers=2, rows=64, tied=False, seed=2)
    rows = [row | {"teacher_prompt": [5, *row["prompt"]]} for row in uneven_rows()]

    def case(*, every: int, num_steps: int, teacher: str = student, **how) -> Case:
        sets = ["teacher.refresh_every=" + str(every), *how.pop("sets", [])]
        return Case(
            student=student,
            teacher=teacher,
            rows=rows,
            micro_batch=2,
            first_step=1,
            num_steps=num_steps,
            sets=sets,
            **how,
        )

    beside = base / "beside" / "global_step_3"
    cases = {
        "frozen": case(every=0, num_steps=3),
        "step 3 of 2": case(every=2, num_steps=3),
        "step 2 of 2": case(every=2, num_steps=2),
        "offloaded": case(every=2, num_steps=3, sets=["actor.param_offload=auto"]),
        "bf16": case(every=2, num_steps=3, sets=["teacher.dtype=bf16"]),
        "another model": case(every=1, num_steps=2, teacher=other),
        "saved after step 3": case(every=2, num_steps=4, saves_to=str(base / "global_step_3")),
        "resumed": case(every=2, num_steps=4, resumes_from=str(base / "global_step_3")),
        "saved beside step 4": case(every=2, num_steps=4, saves_to=str(beside), saves_beside=True),
        "resumed from copies": case(every=2, num_steps=4, resumes_from=str(beside)),
    }
    return dict(zip(cases, run_cases(list(cases.values()), world=request.param), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestRefreshed:
    def test_it_is_the_student_as_it_was_after_the_step(self, refreshed):
        found = refreshed["step 3 of 2"]
        for name, weight in found["weights_before"].items():  # before step 3 is after step 2
            assert torch.equal(found["teacher_weights"][name], weight), name

    def test_it_stays_what_it_was_between(self, refreshed):
        start = refreshed["frozen"]["teacher_weights"]
        for name, weight in refreshed["step 2 of 2"]["teacher_weights"].items():
            assert torch.equal(weight, start[name]), name
        assert any(
            not torch.equal(weight, start[name]) for name, weight in refreshed["step 3 of 2"]["teacher_weights"].items()
        )

    def test_it_is_the_same_wherever_it_waits(self, refreshed):
        for name, weight in refreshed["step 3 of 2"]["teacher_weights"].items():
            assert torch.equal(refreshed["offloaded"]["teacher_weights"][name], weight), name

    def test_it_keeps_its_own_precision(self, refreshed):
        found = refreshed["bf16"]
        for name, weight in found["weights_before"].items():
            assert torch.equal(found["teacher_weights"][name], weight.bfloat16()), name

    def test_a_teacher_of_another_shape_is_refused(self, refreshed):
        assert "other names or shapes than its own" in refreshed["another model"]["error"]

    @pytest.mark.parametrize("how", ["resumed", "resumed from copies"])
    def test_a_resumed_worker_goes_on_to_the_same_bits(self, refreshed, how):
        whole, resumed = refreshed["saved after step 3"], refreshed[how]
        assert whole["has_moved"]
        for part in ("weights", "teacher_weights"):
            for name, weight in whole[part].items():
                assert torch.equal(resumed[part][name], weight), (part, name)
