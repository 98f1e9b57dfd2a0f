"""JSON Schema, default values and documentation that are generated from the schema agree with the loader."""

from pathlib import Path

import jsonschema
import pytest
import yaml
from tests.config.field_docs import field_docs

from opd.config import SPEC_CLASSES, SpecError, dump_spec, json_schema, load_spec, load_text, parse_tree
from opd.config import static_defaults as defaults_of
from opd.config.cluster import parse_cluster
from opd.config.reader import WORDS_11, read_text
from opd.config.tree import get_path, set_path

EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))
KINDS = sorted(SPEC_CLASSES)


def validator(kind):
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def nodes(node):
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from nodes(value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_s_cluster_section_is_one_that_the_chart_takes(path):
    tree = read_text(path.read_text(), origin=str(path)).tree
    parse_cluster(tree.get("cluster", {}), tree["kind"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_and_its_canonical_form_fit_the_json_schema(path):
    tree = read_text(path.read_text(), origin=str(path)).tree
    check = validator(tree["kind"])
    check.validate(tree)
    check.validate(dump_spec(load_spec(path).spec))


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_spec_fits_the_json_schema(kind, minimal):
    validator(kind).validate({**minimal(kind), "cluster": {"image": "x"}, "global": {}})


@pytest.mark.parametrize(
    ("path", "value"),
    [("seed", "7"), ("seed", None), ("data.train_batch_size", 0), ("data.trainn", 1), ("opd.beta", None), ("env", {"a b": "x"}),
     ("name", "A"), ("rollout.top_k", 0), ("kind", "grpo"), ("opd.loss_type", "kl")],
)  # fmt: skip
def test_what_the_loader_refuses_key_by_key_the_json_schema_refuses_too(path, value, minimal):
    tree = minimal("opd")
    set_path(tree, path, value)
    assert not validator("opd").is_valid(tree)
    with pytest.raises(SpecError):
        parse_tree(tree)


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_of_the_schema_refuses_unknown_keys_and_null(kind):
    schema = json_schema(kind)
    assert "$ref" not in str(schema)
    for node in nodes(schema):
        assert node.get("type") != "null"
        if "properties" in node and node is not schema.get("if"):
            assert node["additionalProperties"] is False or node is schema["properties"].get("properties")


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_documented(kind):
    docs = field_docs(kind)
    assert docs
    for doc in docs:
        assert doc.description.endswith("."), doc.path
        assert doc.type, doc.path


@pytest.mark.parametrize("kind", KINDS)
def test_required_keys_are_what_the_smallest_spec_holds(kind, minimal):
    required = {doc.path for doc in field_docs(kind) if doc.required}
    assert all(get_path(minimal(kind), path) for path in required)
    assert required | {"kind"} == required
    for path in required - {"kind"}:
        tree = minimal(kind)
        section, _, key = path.rpartition(".")
        del (tree[section] if section else tree)[key]
        with pytest.raises(SpecError, match=path):
            parse_tree(tree)


@pytest.mark.parametrize("kind", KINDS)
def test_writing_the_static_defaults_out_changes_nothing(kind, minimal):
    def merge(low, high):
        return {
            key: merge(low[key], high[key])
            if isinstance(low.get(key), dict) and isinstance(high.get(key), dict)
            else high.get(key, low.get(key))
            for key in low | high
        }

    for extra in (
        {},
        {"recipe": "grpo-native"} if kind == "grpo" else {},
        {"device": "cpu"} if kind not in ("convert", "pipeline") else {},
    ):
        tree = minimal(kind) | extra
        assert parse_tree(merge(defaults_of(kind), tree)).spec == parse_tree(tree).spec


@pytest.mark.parametrize("kind", KINDS)
def test_the_static_defaults_are_the_defaults_of_the_json_schema(kind):
    for doc in field_docs(kind):
        if doc.default is not None:
            assert get_path(defaults_of(kind), doc.path) == doc.default or doc.path.startswith(
                ("agent.", "teacher.", "model.lora.")
            )


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_is_a_word_that_yaml_1_1_reads_as_a_truth_value(kind):
    for doc in field_docs(kind):
        assert not set(doc.path.split(".")) & WORDS_11, doc.path


@pytest.mark.parametrize("kind", KINDS)
def test_a_dumped_spec_written_as_yaml_is_read_back_the_same(kind, minimal):
    spec = parse_tree(minimal(kind)).spec
    assert load_text(yaml.safe_dump(dump_spec(spec))).spec == spec
