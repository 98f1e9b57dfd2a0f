"""A chat template that the run cannot use ends it at the front door: exit code 2, before Ray is started."""

import json
import shutil
from pathlib import Path

import pytest
import ray
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from opd.agent.settings import AGENT_LOOP
from opd.data.chat_template import UnfitTemplate
from opd.data.toy import STUDENT_DIR
from opd.experiment import load_spec, parse_tree
from opd.experiment.run_config import KEY, RunConfig, RunFacts
from opd.inputs.tokenizers import check_chat_template
from opd.launch import facts
from opd.trainer.entry import run
from opd_envs.travel.toy import MODELS, STUDENT

FAILS = "{{ messages[0]['content'] + messages }}"
ONE_CALL = (
    "{% if messages[1] is defined and messages[1].tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
    "<|im_end|>{% endfor %}"
)


def _with_template(source: Path, template: str | None, target: Path) -> Path:
    shutil.copytree(source, target)
    (target / "chat_template.jinja").unlink()
    if template is not None:
        (target / "chat_template.jinja").write_text(template)
    return target


def _check(model: Path, *, custom: str | None = None, max_parallel_calls: int | None = None) -> None:
    """The check with what it reads of a composed config; with a number of calls, of a run with tools."""
    agent = {"database_dir": "d", "max_parallel_calls": max_parallel_calls or 1, "max_tool_response_length": 64}
    tree = {"kind": "opd-agent", "model": {"path": str(model)}, "teacher": {"path": "t"}, "agent": agent}
    ours = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="r", run_dir="out/r"))
    loop = "single_turn_agent" if max_parallel_calls is None else AGENT_LOOP
    paths = {"path": str(model), "tokenizer_path": None, "custom_chat_template": custom, "trust_remote_code": False}
    role = {"model": paths, "rollout": {"agent": {"default_agent_loop": loop}}}
    tree = {KEY: ours.text(), "data": {"max_prompt_length": 64, "max_response_length": 64}, "actor_rollout_ref": role}
    check_chat_template(OmegaConf.create(tree), AutoTokenizer.from_pretrained(model))


@pytest.mark.slow
@pytest.mark.usefixtures("own_environment")
def test_a_template_that_fails_ends_the_run_with_2_before_ray(tmp_path, capsys):
    model = _with_template(STUDENT_DIR, FAILS, tmp_path / "model")
    sets = [f"model.path={model}", f"output.root={tmp_path}", f"store.url={tmp_path}/store", "name=fails"]
    spec = load_spec("manifests/experiments/quickstart.yaml", env={}, sets=sets).spec
    assert run(spec, facts(spec)) == 2
    said = capsys.readouterr().err
    assert f'model.path\n    value: "{model}"\n    rule:  its chat template cannot be used: it fails: TypeError' in said
    assert "fix:   use a model whose template can" in said
    assert not ray.is_initialized()
    (record,) = (tmp_path / "store").rglob("ended.json")
    assert "it fails: TypeError" in json.loads(record.read_text())["detail"]


def test_a_base_model_without_a_template_is_refused_unless_one_is_given(tmp_path):
    model = _with_template(STUDENT_DIR, None, tmp_path / "model")
    with pytest.raises(UnfitTemplate, match=r"it fails: ValueError: .*chat_template(.|\n)*custom_chat_template"):
        _check(model)
    _check(model, custom="{{ messages[0].content }}")


def test_an_agents_template_is_asked_for_no_more_calls_a_turn_than_the_run_allows(tmp_path):
    model = _with_template(MODELS[STUDENT], ONE_CALL, tmp_path / "model")
    _check(model, max_parallel_calls=1)
    with pytest.raises(UnfitTemplate, match="it fails: one call"):
        _check(model, max_parallel_calls=2)
