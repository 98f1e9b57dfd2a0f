"""What `opdctl explain` says: from the schema and the tables alone, and nothing that the schema would refuse."""

from __future__ import annotations

import jsonschema
import pytest

from opd.config import FILE_KINDS, SPEC_CLASSES, VARIABLES, json_schema
from opd.config.cluster import cluster_schema
from opd.config.keys import cluster_keys, spec_keys
from opd.config.reader import read_text
from opdctl.chart.explain import example, explain, overview
from opdctl.errors import ToolError


def text(word: str, width: int = 300) -> str:
    return "\n".join(explain(word, width=width))


def test_a_key_is_told_with_type_default_variable_verls_key_and_example():
    found = text("opd.loss_type")
    assert found.startswith("opd.loss_type\n")
    assert '"reverse_kl" | "forward_kl" | "jsd"' in found
    assert 'default   "reverse_kl"' in found
    assert "OPD_LOSS_TYPE" in found
    assert 'opd: {loss_type: "forward_kl"}' in found
    assert "actor_rollout_ref.actor.optim.lr" in text("actor.learning_rate")


def test_kind_is_told_with_every_kind_and_as_required() -> None:
    found = text("kind")
    assert all(f'"{kind}"' in found for kind in FILE_KINDS)
    assert "default   required" in found


def test_the_example_of_a_list_of_maps_has_what_each_needs() -> None:
    assert 'example   cluster: {mounts: [{"claim": "claim", "path": "/path"}]}' in text("cluster.mounts")
    lists = [key for key in cluster_keys().values() if key.node.get("type") == "array" and key.takes == "list of map"]
    assert lists
    assert [key.path for key in lists if "[{}]" in example(key)] == []


def test_a_section_a_word_and_a_variable_lead_to_their_keys():
    assert {"opd.importance.tokens.ratio", "opd.importance.tokens.mode"} <= set(text("opd.importance").split())
    assert "actor.learning_rate" in text("peak")
    assert text("TEACHER_MODEL_PATH").startswith("teacher.path\n")
    assert text("cluster.mounts.claim") == text("cluster.mounts[].claim")


def test_a_word_less_explain_tells_every_section_with_what_it_holds_and_every_key_outside_of_any():
    told = dict(line.split("  ", 1) for line in overview(width=10_000))
    assert told["store"] == "url, endpoint, region, addressing"
    assert told["seed"] == spec_keys("opd")["seed"].says
    assert set(told) == {key.partition(".")[0] for kind in FILE_KINDS for key in (*spec_keys(kind), *cluster_keys())}


def test_what_is_unknown_is_a_usage_error_that_names_the_nearest_key():
    for word, near in (("opd.los_type", "opd.loss_type"), ("cluster.gpu.tipe", "cluster.gpu.type"), ("", "")):
        with pytest.raises(ToolError) as caught:
            text(word)
        assert caught.value.exit_code == 2
        assert near in caught.value.fix


def test_every_key_is_explained_with_a_value_that_the_schema_takes():
    schema_of = {kind: (json_schema(kind), spec_keys(kind)) for kind in FILE_KINDS}
    schema_of["cluster"] = ({"properties": {"cluster": cluster_schema("opd")}}, cluster_keys())
    for schema, keys in schema_of.values():
        validator = jsonschema.Draft202012Validator(schema)
        for key in keys.values():
            problems = validator.iter_errors(read_text(example(key), origin="example").tree)
            assert [found.message for found in problems if found.validator != "required"] == [], example(key)


def test_every_variable_of_the_original_is_found_at_its_key():
    known = {path for kind in FILE_KINDS for path in spec_keys(kind)}
    assert {variable.path for variable in VARIABLES} <= known


def test_the_keys_of_one_section_are_those_that_the_whole_schema_has_there() -> None:
    whole = spec_keys("opd-agent")
    for section in SPEC_CLASSES["opd-agent"].model_fields:
        own = {path: key for path, key in whole.items() if path.partition(".")[0] == section}
        assert spec_keys("opd-agent", only=section) == own
