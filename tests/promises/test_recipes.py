"""GRPO's three recipes, the evaluation and the papers' pipelines, as the trainer would start them."""

import pytest
from tests.promises.commands import ROOT, dry_run
from tests.promises.test_variables import ACTOR, FILES, ROLLOUT

REWARD = "reward.custom_reward_function.reward_kwargs.function"
# key: its value in the recipes grpo, grpo-native and grpo-native-no-kl.
RECIPES = [
    ("algorithm.adv_estimator", "grpo", "grpo", "grpo"),
    ("algorithm.use_kl_in_reward", False, False, False),
    (f"{ACTOR}.use_kl_loss", False, True, False),
    (f"{ACTOR}.kl_loss_coef", 0, 0.001, 0),
    (f"{ACTOR}.kl_loss_type", "low_var_kl", "low_var_kl", "low_var_kl"),
    (f"{ACTOR}.clip_ratio_low", 0.2, 0.2, 0.2),
    (f"{ACTOR}.clip_ratio_high", 0.28, 0.2, 0.2),
    (f"{ACTOR}.clip_ratio_c", 10, 3, 3),
    (f"{ACTOR}.entropy_coeff", 0, 0, 0),
    (f"{ACTOR}.loss_agg_mode", "token-mean", "token-mean", "token-mean"),
    (f"{ACTOR}.use_dynamic_bsz", True, False, False),
    (REWARD, "math_reward", "math_reward", "math_reward"),
]


@pytest.mark.parametrize(
    ("key", "values"), [(row[0], list(row[1:])) for row in RECIPES], ids=[row[0] for row in RECIPES]
)
def test_each_grpo_recipe_has_the_scripts_settings(key, values):
    assert [dry_run(FILES[recipe]).values[key] for recipe in ("grpo", "native", "native-no-kl")] == values


def test_a_recipe_that_does_not_exist_is_refused_by_the_names_of_those_that_do():
    started = dry_run("kind: grpo\nrecipe: ppo\nmodel: {path: m}\n")
    assert started.code == 2
    for recipe in ("grpo", "grpo-native", "grpo-native-no-kl"):
        assert f"'{recipe}'" in started.err


@pytest.mark.parametrize("variant", ["boxed", "dapo", "none"])
def test_an_evaluation_reads_the_files_of_its_variant_and_scores_by_the_reward_that_fits(variant):
    values = dry_run(FILES["eval"], INSTRUCTION_VARIANT=variant).values
    names = ("math500", "aime24", "aime25")
    assert values["data.val_files"] == [f"data/eval_processed/{variant}/val_{name}.parquet" for name in names]
    fitting = {"boxed": "math_reward", "dapo": "math_dapo", "none": "math_verify"}
    assert values[REWARD] == fitting[variant]


def test_an_evaluation_validates_16_samples_a_problem_and_trains_nothing():
    values = dry_run(FILES["eval"]).values
    assert (values["trainer.val_only"], values["trainer.total_epochs"]) == (True, 0)
    assert (values[f"{ROLLOUT}.val_kwargs.n"], values[f"{ROLLOUT}.val_kwargs.do_sample"]) == (16, True)


def test_a_distillation_takes_tips_scores_paceds_weights_and_forward_then_reverse_kl():
    papers = {
        "opd.importance.tokens.score": "soft_or",
        "opd.importance.tokens.ratio": "0.5",
        "opd.importance.problems.weights": "competence",
        "opd.importance.problems.pass_rates": "pass_rates.parquet",
        "opd.stages": "[{until: 0.5, loss_type: forward_kl}, {loss_type: reverse_kl}]",
    }
    total = ("--set", "trainer.total_steps=100")
    sets = [word for key, value in papers.items() for word in ("--set", f"{key}={value}")]
    started = dry_run(FILES["opd"], *total, *sets)
    assert started.code == 0, started.err
    for key in ("opd.importance.tokens.score", "opd.importance.problems.weights"):
        broken = [word if not word.startswith(key) else f"{key}=nonsense" for word in sets]
        refused = dry_run(FILES["opd"], *total, *broken)
        assert refused.code == 2
        assert key in refused.err
    for score in ("entropy", "divergence", "soft_or", "q3"):
        broken = [word if "tokens.score" not in word else "opd.importance.tokens.score=nonsense" for word in sets]
        assert f"'{score}'" in dry_run(FILES["opd"], *total, *broken).err


def test_sparse_to_dense_trains_a_teacher_by_grpo_and_distils_it_into_a_student():
    started = dry_run((ROOT / "manifests/pipelines/sparse-to-dense-toy.yaml").read_text())
    assert started.code == 0, started.err
    kinds = list(started.stages.values())
    assert kinds.index("grpo") < kinds.index("opd")
