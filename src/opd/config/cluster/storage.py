"""Defines `cluster`'s sections about volumes and secrets: the run's claim, caches, mounted claims, tool database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from opd.config.base import Text
from opd.config.cluster.base import AbsolutePath, ClusterSection, ObjectName, Quantity
from opd.config.errors import Problem

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Checkpoints(ClusterSection):
    """The run's volume: working directory of its Ray pods, so the spec's relative paths lie on it."""

    claim: ObjectName | None = Field(
        default=None, description="Existing claim; unset: the chart makes one and keeps it."
    )
    size: Quantity = Field(default="500Gi", description="Size of the claim that the chart makes.")
    storage_class: ObjectName | None = Field(
        default=None, description="StorageClass; unset: the cluster's default.", examples=["longhorn"]
    )
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = Field(
        default="ReadWriteMany", description="Head and workers mount it: ReadWriteOnce binds them to one node."
    )
    path: AbsolutePath = Field(default="/opd", description="Where it is mounted.")
    ephemeral: bool = Field(
        default=False, description="No claim: each pod has its own empty folder, and only the store keeps results."
    )

    def check(self) -> Iterator[Problem]:
        """Yield a problem for a claim that nothing mounts."""
        if self.ephemeral and self.claim is not None:
            rule = "an ephemeral run has no claim"
            yield Problem(path="claim", value=self.claim, rule=rule, fix="remove claim, or ephemeral")


class Cache(ClusterSection):
    """Where models and data from a hub or a store are kept for the next run."""

    claim: ObjectName | None = Field(default=None, description="Existing claim; unset: a folder on the run's volume.")
    path: AbsolutePath = Field(default="/cache", description="Where the claim is mounted.")


class Mount(ClusterSection):
    """An existing claim on every Ray pod: models, data."""

    claim: ObjectName = Field(description="Name of the claim.")
    path: AbsolutePath = Field(description="Where it is mounted.")
    sub_path: Text | None = Field(default=None, description="Folder in the claim.")
    read_only: bool = Field(default=True, description="Mount it read-only.")


class ToolDatabase(ClusterSection):
    """The tool database, read-only at `agent.database_dir` on every Ray pod."""

    claim: ObjectName | None = Field(default=None, description="Existing claim that holds it.")
    sub_path: Text | None = Field(default=None, description="Folder in the claim.")
    url: Text | None = Field(default=None, description="Or: a file or tar archive, fetched once per pod and verified.")
    sha256: Sha256 | None = Field(default=None, description="SHA-256 of what `url` names.")
    size: Quantity = Field(default="5Gi", description="Size limit of the fetched copy.")

    def check(self) -> Iterator[Problem]:
        """Yield a problem where the database has two sources, or no checksum."""
        if self.claim is not None and self.url is not None:
            yield Problem(
                path="", value=self.url, rule="the tool database comes from one place", fix="keep claim or url"
            )
        if (self.url is None) != (self.sha256 is None):
            rule = "a fetched database is verified: url and sha256 belong together"
            yield Problem(path="sha256", value=self.sha256, rule=rule, fix="give both")


class SecretKey(ClusterSection):
    """One key of an existing Secret."""

    secret: ObjectName = Field(description="Name of the Secret.")
    key: Text = Field(description="Key in it.")


class Secrets(ClusterSection):
    """Credentials by reference to existing Secrets."""

    hugging_face: SecretKey | None = Field(default=None, description="Token for gated models, as HF_TOKEN.")
    wandb: SecretKey | None = Field(default=None, description="API key, as WANDB_API_KEY.")
    mlflow: SecretKey | None = Field(
        default=None, description="Token of the tracking server, as MLFLOW_TRACKING_TOKEN."
    )
    store: ObjectName | None = Field(
        default=None, description="Secret whose keys become variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...)."
    )
