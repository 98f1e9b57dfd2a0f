"""A teacher that is the student: when it gets the student's weights, and that a resumed worker has the same one, bit for bit."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.update.exact import check_bits, cut, run
from tests.update.models import uneven_rows
from tests.update.workers import Case

from opd.experiment.sections import Teacher
from opd.update.teachers import SelfTeachers, refresh_metrics, teachers_step


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

    def load_local_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.weight.copy_(weights["w"])


def _teachers(value: float, every: int) -> SelfTeachers:
    return SelfTeachers(engines={"teacher": _Engine(value)}, every={"teacher": every})


@pytest.fixture
def second_of_two(monkeypatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)


def _folder(base: Path, step: int) -> Path:
    actor = base / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    return actor


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize(("step", "is_saved"), [(2, False), (3, False), (4, True), (5, True), (6, False), (7, True)])
def test_a_checkpoint_has_the_teacher_only_where_it_is_neither_the_start_nor_the_student(tmp_path, step, is_saved):
    actor, resumed = _folder(tmp_path, step), _teachers(0.0, 3)
    _teachers(7.0, 3).save(actor, step=step)
    assert [path.name for path in actor.iterdir()] == ["teacher_world_size_2_rank_1.pt"] * is_saved
    resumed.load(actor)
    assert resumed.engines["teacher"].local_weights()["w"].tolist() == [7.0 * is_saved] * 2


@pytest.fixture(scope="module")
def refreshed(pair, tmp_path_factory) -> dict[str, dict]:
    """Results of two ranks by name."""
    base = tmp_path_factory.mktemp("saved")
    rows = [row | {"teacher_prompt": [5, *row["prompt"]]} for row in uneven_rows()]
    case = Case(student=pair["student"], teacher=pair["student"], rows=rows, micro_batch=2, first_step=1, num_steps=3)
    every = [[f"teacher.refresh_every={number}"] for number in range(3)]
    later, copied = cut(case, sets=every[2], num_steps=4), str(base / "copied" / "global_step_3")
    cases = {
        "frozen": cut(case, sets=every[0]),
        "step 3 of 2": cut(case, sets=every[2]),
        "step 2 of 2": cut(case, sets=every[2], num_steps=2),
        "offloaded": cut(case, sets=[*every[2], "actor.param_offload=auto"]),
        "bf16": cut(case, sets=[*every[2], "teacher.dtype=bf16"]),
        "whole": cut(later, saves_to=str(base / "global_step_3")),
        "resumed": cut(later, resumes_from=str(base / "global_step_3")),
        "saved from copies": cut(later, saves_to=copied, saves_beside=True),
        "resumed from copies": cut(later, resumes_from=copied),
    }
    return {name: result for (_, name), result in run({(2, name): each for name, each in cases.items()}).items()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestRefreshed:
    def test_it_is_the_student_as_it_was_after_the_step_and_stays_it_until_the_next(self, refreshed):
        found, start = refreshed["step 3 of 2"], refreshed["frozen"]
        check_bits({"weights": found["teacher_weights"]}, {"weights": found["weights_before"]})  # after step 2
        check_bits(refreshed["step 2 of 2"], start, "teacher_weights")
        pairs = [(found["teacher_weights"][name], weight) for name, weight in start["teacher_weights"].items()]
        assert any(not torch.equal(*pair) for pair in pairs)

    def test_it_is_the_same_wherever_it_waits(self, refreshed):
        check_bits(refreshed["offloaded"], refreshed["step 3 of 2"], "teacher_weights")

    def test_it_keeps_its_own_precision(self, refreshed):
        found = refreshed["bf16"]
        rounded = {name: weight.bfloat16() for name, weight in found["weights_before"].items()}
        check_bits({"weights": found["teacher_weights"]}, {"weights": rounded})

    @pytest.mark.parametrize("how", ["resumed", "resumed from copies"])
    def test_a_resumed_worker_goes_on_to_the_same_bits(self, refreshed, how):
        assert refreshed["whole"]["has_moved"]
        check_bits(refreshed[how], refreshed["whole"], "weights", "teacher_weights")
