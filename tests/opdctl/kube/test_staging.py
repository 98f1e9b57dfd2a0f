"""The Job that fills a claim."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from opdctl.commands.stage import cluster_of
from opdctl.stage.job import Staging, job, job_end, policy

STAGING = Staging(source="s3://b/m", claim="models", folder="m", image="registry.example/opd@sha256:1",
                  store_secret="store", hub_secret=("hub", "token"))  # fmt: skip


def test_the_same_work_has_the_same_name_and_other_work_another() -> None:
    again = dataclasses.replace(STAGING, image="other")
    assert again.job_name == STAGING.job_name
    for change in ({"folder": "n"}, {"claim": "c"}, {"revision": "v2"}, {"source": "s3://b/n"}, {"is_dataset": True}):
        assert dataclasses.replace(STAGING, **change).job_name != STAGING.job_name


def test_secrets_are_references_and_the_pod_has_no_token_of_the_api() -> None:
    pod = job(STAGING)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}} in container["env"]
    assert pod["automountServiceAccountToken"] is False


def test_the_command_writes_into_the_claims_folder() -> None:
    words = job(dataclasses.replace(STAGING, revision="main", is_dataset=True))["spec"]["template"]["spec"]["containers"][0]["command"]  # fmt: skip
    assert words == [
        "python",
        "-m",
        "opd.pods.stage",
        "s3://b/m",
        "--to",
        "/claim/m",
        "--revision",
        "main",
        "--dataset",
    ]


def test_the_way_out_goes_with_the_job() -> None:
    tree = policy(STAGING, job_uid="0123456789")
    assert tree["metadata"]["ownerReferences"][0]["uid"] == "0123456789"
    assert tree["spec"]["podSelector"]["matchLabels"] == {"opd/stage": STAGING.job_name}
    assert [item["ports"][0]["port"] for item in tree["spec"]["egress"]] == [53, 443]


def test_the_pod_sees_no_gpu_and_reaches_no_address_of_its_own_link() -> None:
    [container] = job(STAGING)["spec"]["template"]["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    _dns, out = policy(STAGING, job_uid="0123456789")["spec"]["egress"]
    blocks = [peer["ipBlock"] for peer in out["to"] if "ipBlock" in peer]
    assert blocks == [
        {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]},
        {"cidr": "::/0", "except": ["fd00:ec2::/32"]},
    ]


def test_a_jobs_end_is_in_its_conditions() -> None:
    assert job_end({}) is None
    assert job_end({"status": {"conditions": [{"type": "Suspended", "status": "True"}]}}) is None
    assert job_end({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}) is True
    assert job_end({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}) is False


def test_staging_like_an_experiment_asks_the_server_of_its_store_and_may_reach_it(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("store: {endpoint: 'http://minio.example:9000'}\ncluster: {image: {ref: i}}\n")
    (tmp_path / "exp.yaml").write_text(
        "kind: eval\nmodel: {path: m}\nstore: {url: 's3://b/r'}\nenv: {HTTPS_PROXY: p}\n"
    )
    like = cluster_of(tmp_path / "exp.yaml", tmp_path / "site.yaml")
    alone = cluster_of(None, tmp_path / "site.yaml")
    assert vars(alone).items() >= {"image": like.image, "store_secret": like.store_secret}.items()
    assert (like.image, like.store_ports) == ("i", (9000,))
    made = dataclasses.replace(STAGING, variables=like.variables, ports=(443, *like.store_ports))
    [container] = job(made)["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (
        env.items() >= {"AWS_ENDPOINT_URL_S3": "http://minio.example:9000", "HTTPS_PROXY": "p", "HOME": "/tmp"}.items()
    )


def test_the_pod_s_user_and_groups_are_those_of_the_cluster_s_runs(tmp_path: Path) -> None:
    def security(cluster: str) -> dict[str, object]:
        (tmp_path / "site.yaml").write_text(f"cluster: {{image: {{ref: i}}, {cluster}}}\n")
        made = dataclasses.replace(STAGING, user=cluster_of(None, tmp_path / "site.yaml").user)
        return job(made)["spec"]["template"]["spec"]["securityContext"]

    others = {"runAsNonRoot": True, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
    assert security("") == others | {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
    assert security("podSecurity: {runAsUser: 7}") == others | {"runAsUser": 7, "runAsGroup": 1000, "fsGroup": 1000}
    # OpenShift gives each namespace its own.
    unset = "[securityContext.runAsUser, securityContext.runAsGroup, securityContext.fsGroup]"
    assert security(f"head: {{podSpec: {{unset: {unset}}}}}") == others
    assert cluster_of(None, None).user == {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
