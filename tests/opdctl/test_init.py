"""`opdctl init` writes a file that the other commands take, and explains the keys from the schema alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.charts.helm import DIGEST

from gotools import find
from opd.experiment import load_spec
from opdctl.commands.init import explained
from opdctl.console import ToolError

LOCAL = ("--model", "toy://student", "--data", "d.jsonl", "--teacher", "toy://teacher")
CLUSTER = (*LOCAL, "--image", DIGEST, "--gpus", 12, "--claim", "models")


def test_the_file_of_a_local_run_is_an_experiment_and_none_is_overwritten(
    inside: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opd.launch.count_gpus", lambda: 0)
    words = ("init", "--local", *LOCAL, "-f", "first.yaml")
    assert "there is no such file" in inside(*words).stderr
    (tmp_path / "d.jsonl").write_text('{"prompt": "12+30="}\n' * 9)  # more than a step draws without a GPU
    assert inside(*words).returncode == 0
    spec = load_spec(tmp_path / "first.yaml", count_gpus=lambda: 0).spec
    assert (spec.name, spec.teacher.path, spec.data.train) == ("first", "toy://teacher", ("d.jsonl",))
    assert (spec.data.train_batch_size, spec.trainer.test_freq) == (4, -1)
    assert (spec.rollout.val.num_samples, spec.data.max_val_samples) == (1, 16)
    assert (spec.device, spec.data.max_prompt_length, spec.data.max_response_length) == ("cpu", 256, 64)
    assert "exists already" in inside(*words).stderr


def test_columns_of_ones_own_are_written_where_they_are_needed(inside: Callable, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"ask": "12+30=", "sum": "42"}\n' * 5)
    assert "opdctl init --columns" in inside("init", "--local", *LOCAL).stderr
    done = inside("init", "--local", *LOCAL, "--columns", "ask,sum")
    assert done.returncode == 0, done.stderr
    data = load_spec(tmp_path / "exp.yaml").spec.data
    assert (data.columns.prompt, data.columns.answer) == ("ask", "sum")
    assert "\nreward: {function: math_reward}" in (tmp_path / "exp.yaml").read_text()


@pytest.mark.helm
def test_the_file_of_a_cluster_renders_with_nodes_of_one_size(inside: Callable, tmp_path: Path) -> None:
    assert inside("init", *CLUSTER, "-f", "My exp.yaml").returncode == 0
    spec = load_spec(tmp_path / "My exp.yaml").spec
    assert (spec.name, spec.trainer.nnodes, spec.trainer.gpus_per_node) == ("my-exp", 2, 6)
    done = inside("render", "My exp.yaml", OPDCTL_HELM=str(find("helm")))
    assert done.returncode == 0, done.stderr
    assert DIGEST in done.stdout
    assert 'claimName: "models"' in done.stdout


@pytest.mark.parametrize(("words", "code"), [(LOCAL[:4], "no --teacher"), ((*LOCAL, "-f", "7.yaml"), "name")])
def test_what_lacks_or_cannot_be_used_is_named_and_no_file_is_written(
    inside: Callable, tmp_path: Path, words: tuple, code: str
) -> None:
    done = inside("init", "--local", *words)
    assert done.returncode == 2
    assert code in done.stderr
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize(
    ("word", "path"),
    [("opd.importance", "opd.importance.tokens.ratio"), ("TEACHER_MODEL_PATH", "teacher.path"), ("", "cluster.gpu.type")],
)  # fmt: skip
def test_a_section_a_variable_and_no_word_lead_to_keys(word: str, path: str) -> None:
    assert path in [line.split()[0] for line in explained(word)]


def test_a_key_has_type_default_and_kinds_and_an_unknown_word_the_nearest_key() -> None:
    [facts, _] = explained("opd.loss_type")
    assert all(word in facts for word in ("'jsd'", 'default "reverse_kl"', "OPD_LOSS_TYPE", "opd-agent"))
    with pytest.raises(ToolError) as caught:
        list(explained("opd.los_type"))
    assert (caught.value.exit_code, caught.value.fix) == (2, "did you mean opd.loss_type?")
