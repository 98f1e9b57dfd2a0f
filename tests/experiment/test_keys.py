"""The keys as `opdctl init --keys` shows them."""

import pytest

from opd.experiment import FILE_KINDS
from opd.experiment.keys import cluster_keys, spec_keys
from opd.experiment.reader import WORDS_11


@pytest.mark.parametrize("keys", [*map(spec_keys, FILE_KINDS), cluster_keys()], ids=[*FILE_KINDS, "cluster"])
def test_every_key_has_a_type_and_a_description_and_no_name_that_yaml_1_1_reads_as_a_truth_value(keys):
    for path, key in keys.items():
        assert key.says.endswith("."), path
        assert key.takes, path
        assert not set(path.split(".")) & WORDS_11


@pytest.mark.parametrize(
    ("path", "takes", "default", "needed"),
    [
        ("model.path", "string", "", "required"),
        ("agent.database_dir", "string", "", "required with `agent`"),
        ("data.train_batch_size", "integer >= 1", "512", ""),
        ("actor.learning_rate", "number >= 0", "", ""),
        ("recipe", '"grpo" | "grpo-native" | "grpo-native-no-kl"', '"grpo"', ""),
        ("trainer.total_steps", "integer >= 1", "", ""),
    ],
)
def test_a_key_says_what_it_takes_and_whether_it_is_required(path, takes, default, needed):
    key = spec_keys("grpo")[path]
    assert (key.takes, key.default, key.needed) == (takes, default, needed)


def test_a_key_of_the_cluster_section_has_the_default_of_its_place():
    keys = cluster_keys()
    assert (keys["cluster.worker.shmGib"].default, keys["cluster.head.shmGib"].default) == ("16.0", "2.0")
    assert keys["cluster.queue.name"].needed == "required with `cluster.queue`"
