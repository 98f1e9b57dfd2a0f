"""Rules between keys: each broken one is an error that names key, value, rule and fix; its boundary is not."""

import copy

import pytest

from opd.config import SpecError, parse_tree
from opd.config.tree import drop_path, set_path


def problems_of(tree):
    with pytest.raises(SpecError) as caught:
        parse_tree(tree)
    return caught.value.problems


def tree_of(minimal, kind, **changes):
    tree = minimal(kind)
    for path, value in changes.items():
        if value is None:
            drop_path(tree, path)
        else:
            set_path(tree, path.replace("__", "."), copy.deepcopy(value))  # a mend may set a key in it
    return tree


SEVERAL = {
    "teacher": None,
    "teachers": {"a": {"path": "t"}, "b": {"path": "u"}},
    "route.to": {"x": "a", "y/z": "b"},
}


REWARDED = {"opd.policy.weight": 0.5, "rollout.num_samples": 2}
CARRIED = {"rollout.schedule": "carry"}
STRICT = {"rollout.schedule": "strict"}

# kind, changes that are refused, path of the problem, words of the rule, changes that make it valid again
RULES = [
    ("grpo", CARRIED, "rollout.schedule", "compares a prompt's answers", STRICT),
    ("opd-agent", CARRIED, "rollout.schedule", "the state of its tools", STRICT),
    *((kind, CARRIED, "rollout.schedule", "nothing is trained here", STRICT) for kind in ("eval", "passrate")),
    (
        "opd",
        CARRIED | {"rollout.num_samples": 4, "opd.reward_beta": 0.5},
        "opd.reward_beta",
        "trains on in different updates",
        {"opd.reward_beta": None},
    ),
    ("opd", CARRIED | REWARDED, "opd.policy.weight", "trains on in different updates", {"opd.policy.weight": 0.0}),
    (
        "opd",
        CARRIED | {"rollout.num_samples": 2, "opd.stages": [{"policy_weight": 0.5}]},
        "opd.stages.0.policy_weight",
        "trains on in different updates",
        STRICT,
    ),
    (
        "opd",
        CARRIED | {"opd.loss_type": "sampled_reverse_kl"},
        "opd.loss_type",
        "trains on earlier weights' tokens",
        {"opd.loss_type": "reverse_kl"},
    ),
    (
        "opd",
        CARRIED | {"opd.stages": [{"loss_type": "sampled_reverse_kl"}]},
        "opd.stages.0.loss_type",
        "trains on earlier weights' tokens",
        STRICT,
    ),
    (
        "opd",
        CARRIED | {"opd.stages": [{"rollouts": "teacher"}], "opd.teacher_answers": ["a.parquet"]},
        "opd.stages.0.rollouts",
        "nothing to carry over an update",
        {"opd.stages": [{"rollouts": "student"}]},
    ),
    (
        "opd",
        CARRIED | {"opd.horizon": {"tokens": 512, "applies": "generate"}},
        "opd.horizon.applies",
        "may be a different one",
        {"opd.horizon.applies": "train"},
    ),
    (
        "opd",
        CARRIED | {"data.train_batch_size": 256, "rollout.num_samples": 2, "rollout.in_flight": 511},
        "rollout.in_flight",
        "than an update trains on (512)",
        {"rollout.in_flight": 512},
    ),
    (
        "opd",
        CARRIED | {"data.train_batch_size": 256, "rollout.in_flight": 513, "rollout.max_age": 3},
        "rollout.max_age",
        "some would wait longer",
        {"rollout.in_flight": 512},
    ),
    *(
        (
            kind,
            {key: 512},
            key,
            "belongs to rollout.schedule carry",
            {key: None},
        )
        for kind in ("opd", "grpo")
        for key in ("rollout.in_flight", "rollout.max_age")
    ),
    ("sft", {"data.split.part": 3}, "data.split.part", "there are 2 parts", {"data.split.of": 3}),
    ("opd", {"data.split.of": 3}, "data.split.of", "no data.split.part says which", {"data.split.part": 1}),
    ("eval", {"data.split.seed": 7}, "data.split.seed", "no data.split.part says which", {"data.split.part": 2}),
    (
        "opd-agent",
        {"reward.converter": {"url": "https://converter.example/v1", "model": "c"}, "reward.function": "exact_match"},
        "reward.converter.url",
        "only agent_plan has reports",
        {"reward.function": "agent_plan"},
    ),
    ("opd", SEVERAL | {"teacher": {"path": "t"}}, "teachers", "each has one of several", {"teacher": None}),
    ("opd", SEVERAL | {"route.to": {}}, "route.to", "nothing says which one", {"route.to": {"x": "a"}}),
    (
        "opd",
        SEVERAL | {"route.to": {"y/z": "c"}},
        "route.to.y/z",
        "no teacher of that name",
        {"route.to": {"y/z": "b"}},
    ),
    ("opd", {"route.to": {"x": "a"}}, "route.to.x", "no teacher of that name", {"route.to": {}}),
    ("opd", SEVERAL | {"route.all": "a"}, "route.all", "or each row has its own", {"route.to": {}}),
    ("opd", SEVERAL | {"route.to": {}, "route.all": "c"}, "route.all", "no teacher of that name", {"route.all": "b"}),
    (
        "opd-agent",
        SEVERAL | {"route.to": {"x": "both"}},
        "route.to.x",
        "and no blend",
        {"route.blends": {"both": {"weights": {"a": 2, "b": 1}}}},
    ),
    (
        "opd",
        SEVERAL | {"route.blends": {"a": {"weights": {"b": 1.0}}}},
        "route.blends.a",
        "a teacher has that name",
        {"route.blends": {"c": {"weights": {"b": 1.0}}}},
    ),
    (
        "opd",
        SEVERAL | {"actor.ulysses_sequence_parallel_size": 2},
        "actor.ulysses_sequence_parallel_size",
        "share a sequence",
        {"actor.ulysses_sequence_parallel_size": 1},
    ),
    (
        "opd-agent",
        SEVERAL | {"opd.vocab_parallel_size": 2},
        "opd.vocab_parallel_size",
        "share the heads",
        {"opd.vocab_parallel_size": 1},
    ),
    (
        "opd",
        {"teacher.refresh_every": 5},
        "teacher.refresh_every",
        "gets the student's weights",
        {"teacher.path": "Qwen/Qwen3-1.7B", "model.path": "Qwen/Qwen3-1.7B"},
    ),
    (
        "opd",
        {"teacher.refresh_every": 5, "teacher.path": "m", "model.path": "m", "model.revision": "1"},
        "teacher.refresh_every",
        "and its revision where it has one",
        {"teacher.revision": "1"},
    ),
    (
        "opd-agent",
        SEVERAL | {"teachers": {"a": {"path": "t"}, "b": {"path": "u", "refresh_every": 1}}},
        "teachers.b.refresh_every",
        "gets the student's weights",
        {"teachers": {"a": {"path": "t"}, "b": {"path": "u", "refresh_every": 0}}},
    ),
    (
        "opd",
        {"teacher.refresh_every": 5, "teacher.path": "m", "model.path": "m", "model.lora": {"rank": 4}},
        "teacher.refresh_every",
        "a frozen model and adapters",
        {"teacher.refresh_every": 0},
    ),
    (
        "opd-agent",
        SEVERAL
        | {
            "model.path": "u",
            "model.lora": {"rank": 4},
            "teachers": {"a": {"path": "t"}, "b": {"path": "u", "refresh_every": 1}},
        },
        "teachers.b.refresh_every",
        "a frozen model and adapters",
        {"model.lora": None},
    ),
    ("eval", {"model.lora": {"rank": 4}}, "model.lora", "trains nothing", {"model.lora": None}),
    (
        "opd",
        {"teacher.max_prompt_length": 64},
        "teacher.max_prompt_length",
        "reads the student's prompts",
        {"teacher.prompt": "{prompt} {data_source}"},
    ),
    (
        "opd",
        SEVERAL | {"teachers": {"a": {"path": "t"}, "b": {"path": "u", "max_prompt_length": 8}}},
        "teachers.b.max_prompt_length",
        "reads the student's prompts",
        {"teachers": {"a": {"path": "t"}, "b": {"path": "u", "max_prompt_length": 8, "prompt": "{prompt}"}}},
    ),
    (
        "opd",
        {
            "teacher.prompt": "{prompt}",
            "teacher.max_prompt_length": 30000,
            "actor.use_dynamic_bsz": True,
            "model.attn_implementation": "sdpa",
            "actor.log_prob_max_token_len_per_gpu": 30720,
        },
        "teacher.max_prompt_length",
        "must hold the teacher's longest row",
        {"actor.log_prob_max_token_len_per_gpu": 38192},
    ),
    (
        "opd",
        SEVERAL
        | {
            "teachers": {"a": {"path": "t"}, "b": {"path": "u", "prompt": "{prompt}", "max_prompt_length": 30000}},
            "actor.use_dynamic_bsz": True,
            "model.attn_implementation": "sdpa",
            "actor.log_prob_max_token_len_per_gpu": 30720,
        },
        "teachers.b.max_prompt_length",
        "must hold the teacher's longest row",
        {"actor.log_prob_max_token_len_per_gpu": 38192},
    ),
    (
        "opd",
        {"teacher.prompt": "Answer as {{experts}} do."},
        "teacher.prompt",
        "no name stands in braces",
        {"teacher.prompt": "{prompt} Answer as {{experts}} do."},
    ),
    (
        "opd-agent",
        SEVERAL | {"teachers": {"a": {"path": "t"}, "b": {"path": "u", "prompt": "Think."}}},
        "teachers.b.prompt",
        "no name stands in braces",
        {"teachers": {"a": {"path": "t"}, "b": {"path": "u", "prompt": "{{{data_source}}}"}}},
    ),
    (
        "opd-agent",
        {"model.attn_implementation": "sdpa", "actor.log_prob_max_token_len_per_gpu": 4096},
        "actor.log_prob_max_token_len_per_gpu",
        "longest row",
        {"opd.read_tokens": 4096},
    ),
    (
        "opd",
        {"model.attn_implementation": "sdpa", "actor.ppo_max_token_len_per_gpu": 4096},
        "actor.ppo_max_token_len_per_gpu",
        "longest row",
        {"opd.train_tokens": 4096},
    ),
    ("opd", {"opd.max_length": 10239}, "opd.max_length", "10240", {"opd.max_length": 10240}),
    ("opd-agent", {"opd.max_length": 16384}, "opd.max_length", "28672", {"opd.max_length": 28672}),
    (
        "grpo",
        {"actor.ppo_max_token_len_per_gpu": 10239},
        "actor.ppo_max_token_len_per_gpu",
        "longest row",
        {"actor.ppo_max_token_len_per_gpu": 10240},
    ),
    (
        "opd",
        {"actor.ulysses_sequence_parallel_size": 2, "model.attn_implementation": "flash_attention_2"},
        "model.attn_implementation",
        "which only varlen and sdpa can",
        {"model.attn_implementation": "varlen"},
    ),
    (
        "opd-agent",
        {"actor.ulysses_sequence_parallel_size": 2, "actor.use_remove_padding": False},
        "actor.use_remove_padding",
        "slices of packed rows",
        {"actor.use_remove_padding": True},
    ),
    (
        "opd",
        {"actor.ulysses_sequence_parallel_size": 3},
        "actor.ulysses_sequence_parallel_size",
        "divide the number of ranks",
        {"actor.ulysses_sequence_parallel_size": 2},
    ),
    (
        "grpo",
        {"actor.log_prob_max_token_len_per_gpu": 5119, "actor.ulysses_sequence_parallel_size": 2},
        "actor.log_prob_max_token_len_per_gpu",
        "times ulysses_sequence_parallel_size 2",
        {"actor.log_prob_max_token_len_per_gpu": 5120},
    ),
    (
        "opd",
        {"opd.vocab_parallel_size": 3},
        "opd.vocab_parallel_size",
        "divide the number of ranks",
        {"opd.vocab_parallel_size": 4},
    ),
    (
        "sft",
        {"actor.gradient_checkpointing": "auto"},
        "actor.gradient_checkpointing",
        "memory plan",
        {"actor.gradient_checkpointing": True},
    ),
    (
        "grpo",
        {"actor.optimizer_offload": "auto"},
        "actor.optimizer_offload",
        "memory plan",
        {"actor.optimizer_offload": True},
    ),
    (
        "opd",
        {"actor.ppo_mini_batch_size": 96},
        "actor.ppo_mini_batch_size",
        "divide data.train_batch_size (256)",
        {"actor.ppo_mini_batch_size": 128},
    ),
    ("opd", {"opd.loss_type": "topk_reverse_kl"}, "opd.loss_type", "need a number", {"opd.top_k": 8}),
    (
        "opd",
        {"opd.stages": [{"loss_type": "topk_reverse_kl"}]},
        "opd.stages.0.loss_type",
        "need a number",
        {"opd.top_k": 8},
    ),
    ("opd", {"opd.top_k": 8}, "opd.top_k", "belongs to loss_type topk", {"opd.loss_type": "topk_reverse_kl"}),
    (
        "opd",
        {"opd.loss_type": "sampled_reverse_kl", "opd.vocab_parallel_size": 2},
        "opd.loss_type",
        "whole rows of logits",
        {"opd.vocab_parallel_size": 1},
    ),
    (
        "opd-agent",
        {"opd.stages": [{"loss_type": "sampled_reverse_kl"}], "opd.vocab_parallel_size": 2},
        "opd.stages.0.loss_type",
        "whole rows of logits",
        {"opd.vocab_parallel_size": 1},
    ),
    ("opd", {"opd.policy.weight": 0.5}, "opd.policy.weight", "num_samples is 1", {"rollout.num_samples": 2}),
    (
        "opd",
        {"opd.stages": [{"policy_weight": 0.5}]},
        "opd.stages.0.policy_weight",
        "num_samples is 1",
        {"rollout.num_samples": 2},
    ),
    (
        "opd",
        REWARDED | {"opd.vocab_parallel_size": 2},
        "opd.policy.weight",
        "whole rows of logits",
        {"opd.vocab_parallel_size": 1},
    ),
    (
        "opd",
        REWARDED | {"opd.policy.weight": 0, "opd.stages": [{"policy_weight": 1}], "opd.vocab_parallel_size": 2},
        "opd.stages.0.policy_weight",
        "whole rows of logits",
        {"opd.vocab_parallel_size": 1},
    ),
    (
        "opd",
        REWARDED | {"opd.horizon.tokens": 8, "opd.horizon.applies": "generate"},
        "opd.policy.weight",
        "are not whole",
        {"opd.horizon.applies": "train"},
    ),
    (
        "opd",
        REWARDED
        | {
            "opd.policy.weight": 0,
            "opd.stages": [{"policy_weight": 1}],
            "opd.horizon.tokens": 8,
            "opd.horizon.applies": "generate",
        },
        "opd.stages.0.policy_weight",
        "are not whole",
        {"opd.horizon.applies": "train"},
    ),
    (
        "opd",
        REWARDED | {"opd.divergence_weight": 0, "opd.policy.weight": 0},
        "opd.divergence_weight",
        "nothing is learnt",
        {"opd.policy.weight": 1},
    ),
    (
        "opd",
        REWARDED | {"opd.stages": [{"divergence_weight": 0, "policy_weight": 0}]},
        "opd.stages.0.divergence_weight",
        "have weight 0",
        {"opd.stages": [{"divergence_weight": 0}]},
    ),
    (
        "opd",
        REWARDED | {"opd.teacher_answers": ["a"], "opd.stages": [{"rollouts": "teacher"}]},
        "opd.stages.0.rollouts",
        "that the student has sampled",
        {"opd.stages": [{"rollouts": "teacher", "policy_weight": 0}]},
    ),
    (
        "opd",
        {
            "opd.teacher_answers": ["a"],
            "opd.loss_type": "sampled_reverse_kl",
            "opd.stages": [{"rollouts": "teacher"}],
        },
        "opd.stages.0.rollouts",
        "estimates the reverse KL",
        {"opd.stages": [{"rollouts": "student"}]},
    ),
    ("opd", {"opd.reward_beta": 1.0}, "opd.reward_beta", "num_samples is 1", {"rollout.num_samples": 2}),
    (
        "opd",
        {"opd.stages": [{"loss_type": "forward_kl"}, {}]},
        "opd.stages.0.until",
        "another follows has an end",
        {"opd.stages": [{"loss_type": "forward_kl", "until": 0.5}, {}]},
    ),
    (
        "opd-agent",
        {"opd.stages": [{"until": 10}, {"until": 20}]},
        "opd.stages.1.until",
        "ends with the run",
        {"opd.stages": [{"until": 10}, {}]},
    ),
    (
        "opd",
        {"opd.loss_type": "jsd", "opd.stages": [{"beta": 0.3}]},
        "opd.stages.0.beta",
        "own loss_type jsd",
        {"opd.stages": [{"loss_type": "jsd", "beta": 0.3}]},
    ),
    (
        "opd",
        {"opd.stages": [{"loss_type": "jsd"}]},
        "opd.stages.0.beta",
        "is given with it",
        {"opd.stages": [{}]},
    ),
    (
        "opd",
        {"opd.stages": [{"until": 0.5}, {"rollouts": "teacher"}]},
        "opd.stages.1.rollouts",
        "read from files",
        {"opd.teacher_answers": "generations.parquet"},
    ),
    (
        "opd-agent",
        {"opd.stages": [{"rollouts": "teacher"}], "opd.teacher_answers": ["a.parquet"]},
        "opd.stages.0.rollouts",
        "no conversations with tools",
        {"opd.stages": [{"rollouts": "student"}]},
    ),
    (
        "opd",
        {"opd.horizon": {"tokens": 512, "part": "last", "applies": "generate"}},
        "opd.horizon.applies",
        "generated whole",
        {"opd.horizon.part": "first"},
    ),
    (
        "opd-agent",
        {"opd.horizon": {"tokens": 512, "applies": "generate"}},
        "opd.horizon.applies",
        "each of its turns",
        {"opd.horizon.applies": "train"},
    ),
    (
        "opd",
        {"opd.horizon.grow_until": 0.5},
        "opd.horizon.grow_until",
        "grows from its tokens",
        {"opd.horizon.tokens": 512},
    ),
    (
        "opd",
        {
            "opd.importance.tokens.score": "entropy",
            "opd.importance.tokens.normalize": "micro",
            "opd.importance.tokens.scope": "batch",
        },
        "opd.importance.tokens.scope",
        "depend on how it is cut",
        {"opd.importance.tokens.scope": "rollout"},
    ),
    (
        "opd",
        {
            "opd.importance.tokens.score": "soft_or",
            "opd.importance.tokens.normalize": "micro",
            "actor.ulysses_sequence_parallel_size": 2,
        },
        "opd.importance.tokens.normalize",
        "does not see the whole micro-batch",
        {"opd.importance.tokens.normalize": "global"},
    ),
    (
        "opd",
        {"opd.importance.tokens": {"score": "position", "mode": "before_fall"}},
        "opd.importance.tokens.mode",
        "position has no value that could fall",
        {"opd.importance.tokens.score": "divergence"},
    ),
    (
        "opd",
        {"opd.importance.tokens": {"score": "divergence", "mode": "before_fall", "scope": "batch"}},
        "opd.importance.tokens.scope",
        "a fall of its own",
        {"opd.importance.tokens.scope": "rollout"},
    ),
    (
        "opd-agent",
        {"opd.importance.tokens": {"score": "divergence", "mode": "before_fall", "normalize": "micro"}},
        "opd.importance.tokens.normalize",
        "known only when all are scored",
        {"opd.importance.tokens.normalize": "global"},
    ),
    (
        "opd",
        {"opd.importance.problems.weights": "competence"},
        "opd.importance.problems.pass_rates",
        "weights competence follow from the prompts' pass rates",
        {"opd.importance.problems.pass_rates": "/runs/p/eval/pass_rates.parquet"},
    ),
    (
        "opd-agent",
        {"opd.importance.problems.pass_rates": "/runs/p/eval/pass_rates.parquet"},
        "opd.importance.problems.pass_rates",
        "read for weights only",
        {"opd.importance.problems.weights": "moment_matched"},
    ),
    *(
        (
            "opd",
            {
                f"opd.importance.problems.{key}": 2.0,
                "opd.importance.problems.weights": "hard_filter",
                "opd.importance.problems.pass_rates": "s3://b/p/eval/pass_rates.parquet",
            },
            f"opd.importance.problems.{key}",
            "they are hard_filter",
            {"opd.importance.problems.weights": "competence"},
        )
        for key in ("alpha", "beta")
    ),
    (
        "opd",
        {"opd.importance.problems.recompute.every": 50, "opd.importance.problems.drop": False},
        "opd.importance.problems.weights",
        "measured again for weights only",
        {
            "opd.importance.problems.weights": "competence",
            "opd.importance.problems.pass_rates": "s3://b/p/eval/pass_rates.parquet",
        },
    ),
    (
        "opd-agent",
        {
            "opd.importance.problems.recompute.every": 50,
            "opd.importance.problems.weights": "competence",
            "opd.importance.problems.pass_rates": "s3://b/p/eval/pass_rates.parquet",
        },
        "opd.importance.problems.drop",
        "could not come back",
        {"opd.importance.problems.drop": False},
    ),
    (
        "opd",
        {
            "opd.importance.problems.weights": "competence",
            "opd.importance.problems.pass_rates": "p.parquet",
            "opd.importance.problems.drop": False,
            "opd.importance.problems.recompute.every": 50,
            "opd.importance.problems.recompute.num_samples": 1,
        },
        "opd.importance.problems.recompute.num_samples",
        "so few answers",
        {"opd.importance.problems.recompute.num_samples": 2},
    ),
    (
        "opd",
        {
            "opd.importance.problems.weights": "moment_matched",
            "opd.importance.problems.pass_rates": "p.parquet",
            "opd.importance.problems.drop": False,
            "opd.importance.problems.recompute.every": 50,
            "opd.importance.problems.recompute.num_samples": 2,
        },
        "opd.importance.problems.recompute.num_samples",
        "so few answers",
        {"opd.importance.problems.recompute.num_samples": 3},
    ),
    (
        "opd",
        {
            "opd.importance.problems.recompute.at_stages": True,
            "opd.importance.problems.drop": False,
            "opd.importance.problems.weights": "competence",
            "opd.importance.problems.pass_rates": "s3://b/p/eval/pass_rates.parquet",
        },
        "opd.importance.problems.recompute.at_stages",
        "no second stage",
        {"opd.stages": [{"until": 0.5, "loss_type": "forward_kl"}, {}]},
    ),
    ("opd", {"opd.loss_type": "jsd", "opd.beta": 0.0}, "opd.beta", "0 < beta < 1", {"opd.beta": 0.001}),
    ("opd", {"opd.loss_type": "jsd", "opd.beta": 1.0}, "opd.beta", "0 < beta < 1", {"opd.beta": 0.999}),
    ("opd", {"opd.beta": 0.5}, "opd.beta", "reverse_kl has none", {"opd.loss_type": "jsd"}),
    (
        "opd",
        {"rollout.tensor_parallel_size": 3},
        "rollout.tensor_parallel_size",
        "number of ranks (nnodes x gpus_per_node = 8)",
        {"rollout.tensor_parallel_size": 4},
    ),
    (
        "grpo",
        {
            "actor.use_dynamic_bsz": False,
            "actor.ppo_micro_batch_size_per_gpu": 3,
            "actor.log_prob_micro_batch_size_per_gpu": 512,
        },
        "actor.ppo_micro_batch_size_per_gpu",
        "128 prompts x 8 samples / 8 data-parallel ranks = 128",
        {"actor.use_dynamic_bsz": True},
    ),
    (
        "opd",
        {"trainer.gpus_per_node": 6},
        "actor.ppo_mini_batch_size",
        "6 data-parallel ranks",
        {"rollout.num_samples": 6, "actor.ppo_micro_batch_size_per_gpu": 4},
    ),
    ("opd", {"reward.function": "custom"}, "reward.path", "needs its file", {"reward.path": "f.py"}),
    (
        "opd",
        {"reward.function": "math_dapo", "reward.path": "f.py"},
        "reward.function",
        "belongs to function custom",
        {"reward.function": "custom"},
    ),
    ("opd", {"device": "cpu", "rollout.name": "vllm"}, "rollout.name", "device cpu", {"rollout.name": "cpu"}),
    ("opd", {"rollout.name": "cpu"}, "rollout.name", "belongs to device cpu", {"device": "cpu"}),
    (
        "opd",
        {"device": "cpu", "model.attn_implementation": "flash_attention_2"},
        "model.attn_implementation",
        "CUDA",
        {"model.attn_implementation": "eager"},
    ),
    (
        "opd",
        {"model.attn_implementation": "varlen", "actor.use_remove_padding": False},
        "model.attn_implementation",
        "packed rows",
        {"actor.use_remove_padding": True},
    ),
    (
        "grpo",
        {"model.attn_implementation": "flash_attention_2", "actor.ulysses_sequence_parallel_size": 2},
        "model.attn_implementation",
        "which only varlen and sdpa can",
        {"model.attn_implementation": "varlen"},
    ),
    ("opd", {"data.filter_overlong": False}, "data.truncation", "refused", {"data.truncation": "error"}),
]


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


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("opd", {"reward.function": "math_dapo"}, "use math_reward or math_verify"),
        ("eval", {"eval.instruction_variant": "dapo", "reward.function": "math_reward"}, "use math_dapo"),
    ],
)
def test_a_reward_that_cannot_match_the_instruction_is_remarked(kind, changes, words, minimal):
    notes = parse_tree(tree_of(minimal, kind, **changes)).notes
    assert len(notes) == 1
    assert words in notes[0]


@pytest.mark.parametrize(
    "own", [{"actor.log_prob_max_token_len_per_gpu": 64}, {"actor.log_prob_micro_batch_size_per_gpu": 5}]
)
def test_a_distillation_whose_forwards_the_plan_cuts_is_not_asked_for_sizes_that_it_does_not_read(own, minimal):
    prompt = {"teacher.prompt": "{prompt}", "teacher.max_prompt_length": 30000, "actor.use_dynamic_bsz": True}
    parse_tree(tree_of(minimal, "opd", **own, **(prompt if "actor.log_prob_max_token_len_per_gpu" in own else {})))


def test_a_teacher_that_no_value_leads_to_is_remarked(minimal):
    (note,) = parse_tree(tree_of(minimal, "opd", **(SEVERAL | {"route.to": {"x": "a"}}))).notes
    assert note.startswith("teachers.b: no value in route.to")


BLENDED = SEVERAL | {"route.to": {"x": "both"}, "route.blends": {"both": {"weights": {"a": 3, "b": 1}}}}


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        (
            {"route.blends": {"both": {"weights": {"a": 1, "c": 1}}}},
            "route.blends.both.weights.c",
            "no teacher of that",
        ),
        (
            {"teachers": {"a": {"path": "t", "prompt": "{prompt}!"}, "b": {"path": "u"}}},
            "route.blends.both.weights.a",
            "prompt of its own",
        ),
        (
            {"route.blends": {"both": {"weights": {"a": 1e10, "b": 1e-320}}}},
            "route.blends.both.weights.b",
            "would say nothing",
        ),
    ],
)
def test_what_a_blend_cannot_read_is_refused(changes, path, words, minimal):
    (problem,) = problems_of(tree_of(minimal, "opd", **(BLENDED | changes)))
    assert problem.path == path
    assert words in problem.rule


@pytest.mark.parametrize(
    ("blend", "words"),
    [
        ({"weights": {"a": 1, "b": 0}}, "greater than 0"),
        ({"weights": {"a": 1, "b": -2.5}}, "greater than 0"),
        ({"weights": {}}, "at least 1 item"),
        ({"weights": {"a": 1}, "form": "product"}, "'mixture' or 'sum'"),
    ],
)
def test_a_blend_that_is_none_is_refused(blend, words, minimal):
    (problem,) = problems_of(tree_of(minimal, "opd", **(BLENDED | {"route.blends": {"both": blend}})))
    assert problem.path.startswith("route.blends.both")
    assert words in problem.rule


def test_the_largest_weights_that_there_are_have_shares(minimal):
    blend = {"both": {"weights": {"a": 1e308, "b": 1e308}}}
    (reader,) = parse_tree(tree_of(minimal, "opd", **(BLENDED | {"route.blends": blend}))).spec.routed
    assert reader.shares == (0.5, 0.5)


def test_a_blends_shares_are_its_weights_over_their_sum_and_no_teacher_of_it_is_idle(minimal):
    parsed = parse_tree(tree_of(minimal, "opd", **BLENDED))
    assert not any("idle" in note or "reads nothing" in note for note in parsed.notes)
    assert parsed.spec.readers == (
        ("a", (0,), (1.0,), "mixture"),
        ("b", (1,), (1.0,), "mixture"),
        ("both", (0, 1), (0.75, 0.25), "mixture"),
    )
    assert [reader.name for reader in parsed.spec.routed] == ["both"]
    ten = BLENDED | {"route.blends": {"both": {"form": "sum", "weights": {"b": 10, "a": 30}}}}
    assert parse_tree(tree_of(minimal, "opd", **ten)).spec.routed[0].shares == (0.75, 0.25)


def test_a_blend_that_nothing_leads_to_is_remarked_and_one_on_a_gpu_has_no_kernels(minimal):
    (note,) = parse_tree(tree_of(minimal, "opd", **(BLENDED | {"route.to": SEVERAL["route.to"]}))).notes
    assert note.startswith("route.blends.both: nothing leads to it")
    (note,) = parse_tree(tree_of(minimal, "opd", **(BLENDED | {"device": "cuda"}))).notes
    assert "rows of both run through plain fp32 products" in note


def test_teachers_wait_in_one_place(minimal):
    tree = tree_of(minimal, "opd", **SEVERAL)
    tree["teachers"]["b"]["offload"] = False
    (problem,) = problems_of(tree)
    assert (problem.path, problem.value) == ("teachers.b.offload", False)
    tree["teachers"]["a"]["offload"] = False
    parse_tree(tree)


@pytest.mark.parametrize("value", ["a", "a-1", "a" * 47])
def test_a_name_that_kuberay_takes_is_accepted(value, minimal):
    assert parse_tree({**minimal("opd"), "name": value}).spec.name == value


@pytest.mark.parametrize("value", ["", "A", "1a", "a-", "-a", "a_b", "a.b", "ä", "a\n", "a" * 48])
def test_a_name_that_kuberay_refuses_is_refused(value, minimal):
    (problem,) = problems_of({**minimal("opd"), "name": value})
    assert problem.path == "name"
    assert "DNS-1035" in problem.rule


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rollout.top_k", 0),
        ("rollout.top_k", -2),
        ("rollout.top_p", 0),
        ("rollout.temperature", 0),
        ("rollout.val.temperature", -0.1),
        ("actor.betas", [0.9, 1.0]),
        ("actor.betas", [0.9]),
        ("seed", -1),
        ("seed", 2**31),
        ("trainer.loggers", []),
        ("trainer.save_freq", -2),
        ("data.train", []),
        ("data.train_batch_size", True),
        ("data.train_batch_size", "8"),
        ("data.train_batch_size", 8.5),
        ("data.enable_thinking", 1),
        ("data.enable_thinking", "true"),
        ("model.path", 5),
        ("model.path", ""),
        ("env", {"A": 1}),
        ("env", {"A B": "x"}),
        ("rollout.engine_kwargs", {"a=b": 1}),
        ("rollout.engine_kwargs", {"a": [{"b": 1}]}),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused(path, value, minimal):
    (problem,) = problems_of(tree_of(minimal, "opd", **{path: value}))
    assert problem.path.startswith(path)


def test_a_whole_number_may_be_written_as_a_float(minimal):
    # Helm's JSON has 8 where the file has 8.0: both must be the same spec.
    assert parse_tree(tree_of(minimal, "opd", **{"rollout.num_samples": 8.0})).spec.rollout.num_samples == 8


@pytest.mark.parametrize(
    ("opd", "words"),
    [
        ({"policy": {"weight": 0.5}}, "no policy gradient"),
        ({"stages": [{"loss_type": "sampled_reverse_kl"}]}, "no sampled_reverse_kl"),
    ],
)
def test_a_loss_without_cuda_kernels_is_told_and_on_a_cpu_it_is_not(minimal, opd, words):
    for device, num in (("cuda", 1), ("cpu", 0)):
        notes = parse_tree(tree_of(minimal, "opd", device=device, opd=opd, rollout__num_samples=2)).notes
        assert sum("fused CUDA kernels" in note and words in note for note in notes) == num


def test_what_charts_and_stored_specs_of_before_wrote_out_about_parts_is_taken(minimal):
    tree = tree_of(minimal, "opd", **{"data.split.of": 2, "data.split.seed": 42})
    assert parse_tree(tree).spec.data.split.part is None


@pytest.mark.parametrize("name", ["lm_head", "model.embed_tokens"])
def test_heads_and_embeddings_take_no_adapter_however_they_are_named(minimal, name):
    (problem,) = problems_of(tree_of(minimal, "opd", **{"model.lora": {"rank": 4, "target_modules": [name]}}))
    assert "takes no adapter" in problem.rule


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [({}, False), ({"rollout.top_p": 0.8}, True), ({"actor.ppo_epochs": 2}, True)],
    ids=["plain", "truncated sampling", "several updates"],
)
def test_a_sampled_divergence_that_does_not_estimate_the_reverse_kl_is_noted(minimal, changes, is_told):
    batch = {"data.train_batch_size": 64, "opd.loss_type": "sampled_reverse_kl"}
    loaded = parse_tree(tree_of(minimal, "opd", **batch, **changes))
    assert any("sampled_reverse_kl: its mean" in note for note in loaded.notes) is is_told


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"opd.train_tokens": 16_384}, False),
        ({"opd.importance.tokens.normalize": "global"}, False),
        ({"opd.importance.tokens.score": "random"}, False),
        ({"opd.importance.tokens.score": "entropy"}, False),
        ({"model.attn_implementation": "sdpa"}, False),
    ],
    ids=["as the GPU has room", "by the spec", "over the step", "without the student", "without a scale", "by rows"],
)
def test_a_choice_within_micro_batches_that_depends_on_the_gpu_is_noted(minimal, changes, is_told):
    choice = {"opd.importance.tokens.score": "soft_or", "opd.importance.tokens.normalize": "micro"}
    found = parse_tree(tree_of(minimal, "opd", **choice | changes)).notes
    assert any("normalize micro" in note and "opd.train_tokens" in note for note in found) is is_told


def test_sizes_of_a_micro_batch_that_a_distillation_on_a_gpu_does_not_read_are_named_and_never_refused(minimal):
    sizes = {"actor.ppo_micro_batch_size_per_gpu": 7, "actor.ppo_max_token_len_per_gpu": 4096}
    unread = parse_tree(tree_of(minimal, "opd", **sizes)).notes
    assert [note.partition(":")[0] for note in unread] == list(sizes)
    assert all("opd.train_tokens" in note for note in unread)
    assert not parse_tree(tree_of(minimal, "opd")).notes
    padded = {"actor.ppo_micro_batch_size_per_gpu": 2, "actor.use_remove_padding": False}
    assert not parse_tree(tree_of(minimal, "opd", **padded)).notes
    (note,) = parse_tree(tree_of(minimal, "opd", **padded, **{"opd.train_tokens": 4096})).notes
    assert note.startswith("actor.ppo_micro_batch_size_per_gpu:")
