"""Any change of a spec gives a valid one or one SpecError, never another exception."""

import copy

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.minimal import MINIMAL

from opd.experiment import ConvertSpec, PipelineSpec, SpecError, dump_spec, load_text, parse_tree, spec_hash
from opd.experiment.run_config import RunFacts
from opd.experiment.verl import compute_overrides

FULL = {name: dump_spec(parse_tree(tree).spec) for name, tree in MINIMAL.items()}
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["", "null", "yes", "1e-6", "0x1f", "${x}", "a=b", "x\ny", "'", '"', "opd", "grpo", "s3://u:p@b"]),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.just({}),
)
QUIET = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def paths(tree, prefix=()):
    for key, value in tree.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, key))


@st.composite
def mutated(draw):
    tree = copy.deepcopy(draw(st.sampled_from(list(FULL.values()))))
    for _ in range(draw(st.integers(0, 2))):
        *parents, last = draw(st.sampled_from(sorted(paths(tree))))
        node = tree
        for key in parents:
            node = node[key]
        action = draw(st.sampled_from(["replace", "delete", "rename", "add"]))
        if action == "replace":
            node[last] = draw(ODD)
        elif action == "delete":
            del node[last]
        elif action == "rename":
            node[last[:-1] or "x"] = node.pop(last)
        else:
            node[draw(st.text(max_size=6))] = draw(ODD)
        if not tree:
            break
    return tree


def check_error(error):
    assert error.problems
    assert str(error)


def valid_or_spec_error(load):
    try:
        spec = load().spec
    except SpecError as error:
        return check_error(error)
    assert parse_tree(dump_spec(spec)).spec == spec
    assert len(spec_hash(spec)) == 64
    if not isinstance(spec, ConvertSpec | PipelineSpec):
        assert compute_overrides(spec, run=RunFacts(run_id=spec.name, run_dir="r"))
    return spec


@pytest.mark.slow
@QUIET
@given(mutated())
def test_a_mutated_file_is_valid_or_a_spec_error(tree):
    valid_or_spec_error(lambda: parse_tree(tree))
    valid_or_spec_error(lambda: load_text(yaml.safe_dump(tree)))
