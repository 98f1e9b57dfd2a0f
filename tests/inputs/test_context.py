"""A row that is longer than the model's context: the check names its key, wherever the model comes from."""

import pytest

from opd.experiment import parse_tree
from opd.experiment.defaults import context_of
from opd.experiment.rules import config_problems, context_problems

PROMPT = 100


def spec(response: int, *, kind: str = "opd", model: str = "toy://student", **more):
    data = {"train": ["toy://train"], "val": ["toy://heldout"]}
    data |= {"max_prompt_length": PROMPT, "max_response_length": response}
    tree = {"kind": kind, "device": "cpu", "model": {"path": model}, "data": data, "trainer": {"gpus_per_node": 1}}
    if kind.startswith("opd"):
        tree["teacher"] = {"path": "toy://teacher"}
    if kind == "opd-agent":
        tree["agent"] = {"database_dir": "."}
    return parse_tree(tree | more).spec


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 40960, "rope_scaling": {"factor": 4.0}}, 40960),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        ({"model_type": "mamba"}, None),
    ],
    ids=["as verl's servers take it", "below the text's config", "not said"],
)
def test_the_context_is_what_the_config_says(config, context):
    assert context_of(config) == context


@pytest.mark.parametrize("kind", ["opd", "opd-agent", "grpo", "eval", "passrate"])
def test_a_row_one_token_too_long_is_refused_with_the_longest_response(kind):
    of_kind = spec(925, kind=kind)
    assert list(context_problems(of_kind, 1025)) == list(context_problems(of_kind, None)) == []
    [problem] = context_problems(of_kind, 1024)
    assert (problem.path, problem.value) == ("data.max_response_length", 925)
    assert "data.max_prompt_length=100 a row has up to 1025 tokens" in problem.rule
    assert problem.fix.startswith("at most 924,")


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"text_config": {"layer_types": ["linear_attention", "full_attention"]}}, "linear_attention"),
        ({"sliding_window": 4096}, "sliding_attention"),
    ],
)
def test_layers_that_the_cpus_server_cannot_cache_are_refused_where_it_answers(config, layers):
    [problem] = config_problems(spec(8), config)
    assert problem.path == "model.path"
    assert f"no cache for its layers of {layers}" in problem.rule
    assert list(config_problems(spec(8), {"sliding_window": 4096, "use_sliding_window": False})) == []
    assert list(config_problems(spec(8, kind="sft"), config)) == []


@pytest.mark.parametrize(
    "changes", [{"final_logit_softcapping": 30.0}, {"logit_scale": 0.0625}, {"text_config": {"logits_scaling": 8}}]
)
def test_a_head_that_caps_or_scales_is_refused_where_its_hidden_states_are_trained(changes):
    [problem] = config_problems(spec(8), changes)
    assert problem.path == "model.path"
    assert "its logits are more than hidden @ W.T" in problem.rule
    assert [one.path for one in config_problems(spec(8), changes, "teacher.path")] == ["teacher.path"]
    assert list(config_problems(spec(8), {"final_logit_softcapping": None, "logit_scale": 1.0})) == []
    assert list(config_problems(parse_tree({"kind": "eval", "model": "m", "data": {"val": ["v"]}}).spec, changes)) == []
