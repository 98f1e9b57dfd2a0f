"""Rules between keys: each broken one is an error that names key, value, rule and fix; its boundary is not."""

import pytest
from tests.experiment.broken_rules import RULES
from tests.experiment.trees import problems_of, tree_of

from opd.experiment import parse_tree


@pytest.mark.parametrize(("kind", "bad", "path", "words", "mend"), RULES)
def test_a_broken_rule_is_refused_and_its_fix_is_accepted(kind, bad, path, words, mend, minimal):
    (problem,) = problems_of(tree_of(minimal, kind, **bad))
    assert problem.path == path
    assert words in problem.rule
    assert problem.fix
    parse_tree(tree_of(minimal, kind, **(bad | mend)))


def test_several_problems_are_reported_together(minimal):
    bad = {"opd.max_length": 1, "opd.reward_beta": 1.0, "actor.ppo_mini_batch_size": 96}
    assert {p.path for p in problems_of(tree_of(minimal, "opd", **bad))} == set(bad)


def test_a_distillation_whose_forwards_the_plan_cuts_needs_no_sizes_of_verl(minimal):
    prompt = {"teacher.prompt": "{prompt}", "teacher.max_prompt_length": 30000, "actor.use_dynamic_bsz": True}
    parse_tree(tree_of(minimal, "opd", **prompt, **{"opd.read_tokens": 64, "actor.log_prob_max_token_len_per_gpu": 64}))


MICRO = {"actor.ppo_micro_batch_size_per_gpu": 2}


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("opd", {}, ""),
        ("opd", MICRO, ""),
        ("opd", {"data.train_batch_size": 8, "trainer.gpus_per_node": 1}, ""),
        ("opd", {"data.train_batch_size": 4, "trainer.gpus_per_node": 1, "actor.use_dynamic_bsz": False}, ""),
        ("grpo", {"rollout.top_p": 0.9}, "rollout.top_p"),
        ("opd", {"rollout.top_k": 20}, ""),
        ("opd", {"rollout.top_k": 20, "opd.loss_type": "sampled_reverse_kl"}, "rollout.top_k"),
        ("opd", {"opd.teacher_answers": "a.parquet"}, "opd.teacher_answers: not read"),
        ("opd", {"opd.teacher_answers": "a.parquet", "opd.stages": [{"rollouts": "teacher"}]}, ""),
        ("opd", MICRO | {"actor.use_dynamic_bsz": True}, "cuts by tokens"),
        ("opd", MICRO | {"opd.train_tokens": 4096}, "opd.train_tokens"),
        ("opd", {"actor.ppo_max_token_len_per_gpu": 30000, "actor.use_dynamic_bsz": False}, "without actor.use_dyn"),
    ],
)
def test_what_is_probably_not_meant_is_remarked_and_nothing_else(kind, changes, words, minimal):
    notes = parse_tree(tree_of(minimal, kind, **changes)).notes
    assert [words in note for note in notes] == ([True] if words else [])
