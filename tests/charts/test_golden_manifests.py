"""The manifests of every shipped experiment and of many that users write, byte for byte."""

from tests.golden import experiments


def test_rendered_manifests_equal_the_golden_ones(tmp_path):
    experiments.check(experiments.manifests, experiments.GOLDEN / "manifests", tmp_path)
