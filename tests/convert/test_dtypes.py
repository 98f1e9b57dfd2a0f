"""The precision that a base model's config names."""

import json

import pytest
import torch

from opd.convert.errors import ConvertError
from opd.convert.pipeline import base_dtype


@pytest.mark.parametrize(
    "config", [{"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}, {"text_config": {"dtype": "bfloat16"}}]
)
def test_the_dtype_of_a_config_or_of_its_text_part_counts(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert base_dtype(str(tmp_path)) == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "text"), [("{}", "says dtype None"), ('{"dtype": "fp3"}', "says dtype fp3"), ("", "cannot be read")]
)
def test_a_base_that_says_no_dtype_is_refused_by_name(tmp_path, config, text):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConvertError, match=f"base model {tmp_path}.* {text}[^\\0]*hoose dtype checkpoint"):
        base_dtype(str(tmp_path))
