"""What is written as a Hydra override is read back by Hydra and OmegaConf as exactly the same value."""

import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from opd.config.verl import hydra_value

PARSER = OverridesParser.create()


def read_back(value):
    """The value after Hydra's parser and OmegaConf's interpolation, as the trainer sees it."""
    override = PARSER.parse_override(f"key={hydra_value(value)}")
    config = OmegaConf.create({"key": override.value()})
    return OmegaConf.to_container(config, resolve=True)["key"]


TRICKY = ["", "a", "a b", "1", "1e5", "1_0", "true", "null", "Null", "NaN", "inf", "-", "a,b", "[a]", "{a:b}", "a=b", "a:b",
          "s3://bucket/x", "$x", "${data.dir}", "\\${x}", "\\\\${x}", "it's", '"q"', "\\", "\\\\", "a\\", "\\'", "\\\\'", " a ",
          "pkg://opd.rewards.entry", "über", "a\nb", "\t", "#x", "a#b", "%", "~", "+", "a@b", "choice(1,2)", "glob(*)", "'",
          "''", "a'${b}'", "x\\", "\\n"]  # fmt: skip


@pytest.mark.parametrize("value", TRICKY)
def test_a_string_is_read_back_exactly(value):
    assert read_back(value) == value


@pytest.mark.parametrize(
    "value", [0, -1, 2**53, 1e-6, 1e16, 1.0, -0.5, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, True, False, None]
)
def test_a_number_keeps_value_and_type(value):
    found = read_back(value)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("value", [[], [1, 2], ["a", "b c", "x,y"], [0.9, 0.999], [True, "true"], ["it's", "${x}"]])
def test_a_list_is_read_back_exactly(value):
    assert read_back(value) == value
    assert read_back(tuple(value)) == value


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(st.text(max_size=20), st.text(alphabet="\\'\"${}a, []:", max_size=12)))
def test_any_text_is_read_back_exactly(value):
    assert read_back(value) == value


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False)))
def test_any_finite_number_is_read_back_exactly(value):
    assert read_back(value) == value


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="finite"):
        hydra_value(value)


def test_a_map_is_refused():
    with pytest.raises(TypeError, match="override"):
        hydra_value({"a": 1})
