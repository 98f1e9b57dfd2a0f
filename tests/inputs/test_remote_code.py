"""Code that a model's folder ships runs only where that model's own flag says so: the teacher's is not the student's."""

import json
from pathlib import Path

import pytest
from tests.update.models import save_model, uneven_rows
from tests.update.workers import Case, run_cases

from opd.experiment import SpecError
from opd.experiment.run_config import RunFacts
from opd.main_opd import spec_of
from opd.trainer.entry import compose, prepare

_CONFIG = """
from pathlib import Path

from transformers import Qwen3Config

Path({marker!r}).touch()


class OwnConfig(Qwen3Config):
    model_type = "own-architecture"
"""
_MODEL = """
from transformers import Qwen3ForCausalLM

from .configuration_own import OwnConfig


class OwnForCausalLM(Qwen3ForCausalLM):
    config_class = OwnConfig
"""
STUDENT_FLAG = "actor_rollout_ref.model.trust_remote_code"


@pytest.fixture
def student(tmp_path) -> str:
    return save_model(tmp_path / "student", hidden=32, layers=1, rows=64, tied=True, seed=1)


@pytest.fixture
def marker(tmp_path) -> Path:
    """A file that is there once the teacher's code has run."""
    return tmp_path / "the teacher's code ran"


@pytest.fixture
def teacher(tmp_path, marker, monkeypatch) -> str:
    """A model of an architecture that only the files in its folder know."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))  # where worker processes put such files
    folder = Path(save_model(tmp_path / "teacher", hidden=48, layers=1, rows=96, tied=False, seed=2))
    (folder / "configuration_own.py").write_text(_CONFIG.format(marker=str(marker)))
    (folder / "modeling_own.py").write_text(_MODEL)
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    own = {"model_type": "own-architecture", "architectures": ["OwnForCausalLM"], "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config | own))
    return str(folder)


@pytest.mark.slow
def test_a_worker_runs_the_teachers_code_by_the_teachers_flag_alone(student, teacher, marker):
    def update(student_flag: bool, teacher_flag: bool) -> dict:
        flags = [f"{STUDENT_FLAG}={student_flag}", f"opd.teacher.trust_remote_code={teacher_flag}"]
        (result,) = run_cases(
            [Case(student=student, teacher=teacher, rows=uneven_rows(), overrides=flags)], is_fresh=True
        )
        return result

    assert "trust_remote_code" in update(True, False)["error"]
    assert not marker.exists()
    assert update(False, True)["metrics"]["opd/loss"] > 0
    assert marker.exists()


def _config(student: str, teacher: str, tmp_path: Path, *flags: str):
    paths = [f"actor_rollout_ref.model.path={student}", f"opd.teacher.path={teacher}"]
    files = ["data.train_files=toy://train", "data.val_files=toy://heldout"]
    (Path(student) / "chat_template.jinja").write_text("{{ messages[0].content }}")
    short = ["data.max_prompt_length=32", "data.max_response_length=32"]
    spec = spec_of([*paths, *files, *short, "trainer.device=cpu", *flags], {})
    return compose(spec, RunFacts(run_id="r", run_dir=str(tmp_path)))


@pytest.mark.slow
def test_the_front_door_refuses_a_teacher_that_needs_its_own_code_and_runs_none_of_it(
    student, teacher, marker, tmp_path
):
    with pytest.raises(
        SpecError, match=r"teacher\.trust_remote_code\n    value: false\n    rule:  .*(.|\n)*fix:   read that"
    ):
        prepare(_config(student, teacher, tmp_path, f"{STUDENT_FLAG}=true"))
    assert not marker.exists()
