"""Hydra and OmegaConf read an override back as exactly the value that was written."""

import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from opd.experiment.verl import hydra_value

PARSER = OverridesParser.create()


def read_back(value):
    """Return the value after Hydra's parser and OmegaConf's interpolation, as the trainer sees it."""
    config = OmegaConf.create({"key": PARSER.parse_override(f"key={hydra_value(value)}").value()})
    return OmegaConf.to_container(config, resolve=True)["key"]


TRICKY = ["", "a", "a b", "1", "1e5", "1_0", "true", "null", "Null", "NaN", "inf", "-", "a,b", "[a]", "{a:b}", "a=b", "a:b",
          "s3://bucket/x", "$x", "${data.dir}", "\\${x}", "\\\\${x}", "it's", '"q"', "\\", "\\\\", "a\\", "\\'", "\\\\'", " a ",
          "pkg://opd.rewards", "über", "a\nb", "\t", "#x", "a#b", "%", "~", "+", "a@b", "choice(1,2)", "glob(*)", "'",
          "''", "a'${b}'", "x\\", "\\n"]  # fmt: skip
NUMBERS = [0, -1, 2**53, 1e-6, 1e16, 1.0, -0.5, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, True, False, None]
LISTS = [[], [1, 2], ["a", "b c", "x,y"], [0.9, 0.999], [True, "true"], ["it's", "${x}"], {"a": [1, {"b": "c, d"}]}]


@pytest.mark.parametrize("value", [*TRICKY, *NUMBERS, *LISTS])
def test_a_value_keeps_its_text_and_type(value):
    found = read_back(value)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("value", "error"), [(math.inf, ValueError), (math.nan, ValueError), (object(), TypeError)])
def test_what_no_override_can_hold_is_refused(value, error):
    with pytest.raises(error):
        hydra_value(value)
