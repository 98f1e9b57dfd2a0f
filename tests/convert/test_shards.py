"""Completeness told from file names."""

from __future__ import annotations

import pytest

from opd.convert.source import settle_world_size, shard_name

THREE = [shard_name(3, rank) for rank in range(3)]


def test_all_ranks_of_the_configured_world_size_are_complete():
    assert settle_world_size([*THREE, "optim_world_size_3_rank_0.pt"], b'{"world_size": 3}') == (3, [])


def test_without_a_config_one_world_size_speaks_for_itself():
    assert settle_world_size(THREE, None) == (3, [])


def test_every_missing_rank_is_named():
    _, problems = settle_world_size([shard_name(3, 1)], b'{"world_size": 3}')
    assert [problem.split()[0] for problem in problems] == [shard_name(3, 0), shard_name(3, 2)]


def test_two_world_sizes_without_a_config_are_not_guessed():
    _, (problem,) = settle_world_size([*THREE, shard_name(1, 0)], None)
    assert "[1, 3]" in problem


@pytest.mark.parametrize("config", [b"", b"[]", b"{}", b'{"world_size": "many"}', b'{"world_size": null}'])
def test_a_config_that_does_not_say_the_world_size_is_a_problem(config):
    _, (problem,) = settle_world_size(THREE, config)
    assert "fsdp_config.json" in problem


def test_a_folder_without_shards_is_no_fsdp_checkpoint():
    _, (problem,) = settle_world_size(["model.safetensors"], b'{"world_size": 1}')
    assert "FSDP" in problem
