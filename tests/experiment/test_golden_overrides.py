"""verl's overrides of every shipped experiment and of many that users write, byte for byte."""

import pytest
from tests.golden import experiments


@pytest.mark.slow
def test_verls_overrides_equal_the_golden_ones(tmp_path):
    experiments.check(experiments.overrides, experiments.GOLDEN / "overrides", tmp_path)
