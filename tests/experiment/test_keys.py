"""The keys as `opdctl keys` shows them."""

import pytest

from opd.experiment import SPEC_CLASSES
from opd.experiment.cluster import Cluster
from opd.experiment.keys import keys_of
from opd.experiment.reader import WORDS_11

SECTIONS = {**SPEC_CLASSES, "cluster": Cluster}


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_has_a_type_and_a_description_and_no_name_that_yaml_1_1_reads_as_a_truth_value(name):
    for path, key in keys_of(SECTIONS[name]).items():
        assert key.says.endswith("."), path
        assert key.facts, path
        assert not set(path.split(".")) & WORDS_11


def test_keys_are_required_or_say_the_default_that_follows_from_others():
    required = {path for path, key in keys_of(SPEC_CLASSES["grpo"]).items() if key.facts.endswith("required")}
    assert required == {"kind", "model.path", "model.lora.rank"}
    required = {path for path, key in keys_of(Cluster).items() if key.facts.endswith("required")}
    assert "queue.name" in required
    assert not {path for path in required if path.startswith(("head", "worker", "cleanUp"))}
