"""Variables of Ray pods: secrets by reference, one tracker run over all attempts, the user's own last and winning."""

import pytest
from tests.charts.helm import RUN, env_of, head, rayjob, refusal, worker
from tests.minimal import MINIMAL

from opd.config import FILE_KINDS

SECRETS = {"huggingFace": {"secret": "hf", "key": "t"}, "wandb": {"secret": "wb", "key": "k"}, "mlflow": {"secret": "ml", "key": "m"}, "store": "bucket"}  # fmt: skip


@pytest.mark.slow
def test_secrets_come_by_reference():
    container = head(rayjob("opd", {"cluster": {"secrets": SECRETS}}))
    env = env_of(container)
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "t"}}
    assert env["WANDB_API_KEY"] == {"secretKeyRef": {"name": "wb", "key": "k"}}
    assert env["MLFLOW_TRACKING_TOKEN"] == {"secretKeyRef": {"name": "ml", "key": "m"}}
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]


@pytest.mark.slow
def test_head_and_workers_have_the_same_variables_but_for_the_devices():
    spec = rayjob("opd", {"cluster": {"secrets": SECRETS, "extraEnv": [{"name": "A", "value": "1"}]}})
    own = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert own in head(spec)["env"]
    assert [item for item in head(spec)["env"] if item != own] == worker(spec)["env"]


@pytest.mark.slow
def test_one_wandb_run_lives_over_all_attempts():
    env = env_of(head(rayjob("opd", {"trainer": {"loggers": ["console", "wandb"]}})))
    assert (env["WANDB_RUN_ID"], env["WANDB_RESUME"]) == (RUN, "allow")
    assert "WANDB_RUN_ID" not in env_of(head(rayjob("opd", {"trainer": {"loggers": ["console"]}})))


@pytest.mark.slow
def test_no_name_is_set_twice_and_the_user_s_own_value_wins():
    extra = [
        {"name": "HOME", "value": "/h"},
        {"name": "HF_HOME", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    entries = head(rayjob("opd", {"cluster": {"extraEnv": extra}}))["env"]
    names = [item["name"] for item in entries]
    assert len(names) == len(set(names))
    assert entries[-2:] == extra


@pytest.mark.slow
def test_a_variable_with_no_value_or_two_is_refused():
    for entry in ({"name": "A"}, {"name": "A", "value": "1", "valueFrom": {}}):
        assert "cluster.extraEnv.0" in refusal("opd", {"cluster": {"extraEnv": [entry]}})


@pytest.mark.slow
def test_more_sources_come_after_the_store_s():
    layer = {"cluster": {"secrets": {"store": "s"}, "envFrom": [{"configMapRef": {"name": "c"}}]}}
    assert head(rayjob("opd", layer))["envFrom"] == [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}]


LITERALS = [
    {"env": {"WANDB_API_KEY": "sk-123"}},
    {"cluster": {"extraEnv": [{"name": "HF_TOKEN", "value": "sk-123"}]}},
    {"cluster": {"worker": {"annotations": {"DB_PASSWORD": "sk-123"}}}},
    {"rollout": {"engine_kwargs": {"A_SECRET": "sk-123"}}},
    {"store": {"url": "s3://user:sk-123@bucket/x"}},
    {"overrides": ["+ray_kwargs.ray_init.runtime_env.env_vars.HF_TOKEN=sk-123"]},
]


@pytest.mark.parametrize("layer", LITERALS)
def test_a_literal_secret_is_refused_wherever_it_stands_and_never_shown(layer):
    message = refusal("opd", layer)
    assert "secret is never written" in message
    assert "sk-123" not in message


def test_a_reference_to_a_secret_is_no_literal():
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    spec = rayjob("opd", {"cluster": {"extraEnv": [{"name": "HF_TOKEN", "valueFrom": reference}]}})
    assert env_of(head(spec))["HF_TOKEN"] == reference


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_models_from_a_hub_are_cached_on_the_run_s_volume_or_on_a_claim_for_all_runs(kind):
    own = env_of(head(rayjob(kind, {"cluster": {"cache": {"claim": "hub"}}})))
    assert own["HF_HOME"] == "/cache/huggingface"
    assert env_of(head(rayjob(kind, MINIMAL[kind], experiment="")))["HF_HOME"] == "/opd/cache/huggingface"
