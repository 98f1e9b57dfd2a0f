"""Defines the sections of the run itself: trainer, checkpoints, store, output."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from opd.config.base import Count, Natural, Paths, Section, Text

Logger = Literal["console", "file", "wandb", "mlflow", "tensorboard"]


class RunTrainer(Section):
    """Resources and logging, for every kind that starts verl."""

    nnodes: Count = Field(default=1, description="Nodes.")
    gpus_per_node: Count = Field(description="Ranks on a node.")
    loggers: tuple[Logger, ...] = Field(
        default=("console",), min_length=1, description="Where metrics go, beside the run's own."
    )
    project: Text = Field(default="opd", description="Project name in wandb, mlflow and tensorboard.")
    master_port: int | None = Field(
        default=None, ge=1024, le=65535, description="Port of torch's rendezvous; unset: a free one."
    )
    stall_floor_s: float = Field(
        default=900.0,
        ge=0,
        description="Seconds without progress that are never a stall (four times as many in a phase's first pass); 0: nothing is.",
    )
    stall_factor: float = Field(
        default=10.0,
        ge=1,
        description="Medians of a phase's own silences after which it counts as stalled and is ended.",
    )


class Trainer(RunTrainer):
    """Length and rhythm of a training run, in steps unless said otherwise."""

    total_epochs: Count = Field(default=15, description="Passes over the training prompts.")
    total_steps: Count | None = Field(default=None, description="Stop after this many steps; unset: by epochs.")
    save_freq: int = Field(default=20, ge=-1, description="Steps between checkpoints; -1 or 0: none.")
    test_freq: int = Field(default=5, ge=-1, description="Steps between validations; -1 or 0: none.")
    val_before_train: bool = Field(description="Validate before the first step.")
    max_skipped_updates: Natural = Field(
        default=20,
        description="End the run after this many updates in a row without finite loss and gradient; 0: never.",
    )
    monitor: bool = Field(default=True, description="Name faults that a run survives without an error.")
    resume: Literal["auto", "never"] = Field(
        default="auto", description="Continue from the newest complete checkpoint."
    )


class Checkpoint(Section):
    """Which checkpoints stay."""

    keep_last: Count | None = Field(default=None, description="Keep this many newest checkpoints; unset: all.")
    keep_every: Count | None = Field(
        default=None, description="Keep every checkpoint whose step is a multiple, for good."
    )
    overlap: bool = Field(
        default=True,
        description="Write, hash and upload a checkpoint while the next steps train, from a copy in host memory; where there is no room for it, within the step.",
    )


class Store(Section):
    """The object store of results, metrics and checkpoints."""

    url: Text = Field(
        description="fsspec URL (s3://, file://; gs:// with opd[gcs], az:// with opd[azure]; the images have both) or local folder; never with credentials.",
        examples=["s3://experiments/opd"],
    )
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/@\s]+$")] | None = Field(
        default=None,
        description="S3 server other than AWS's; egress to it is opened.",
        examples=["https://minio.example:9000"],
    )
    region: Text | None = Field(
        default=None, description="S3 region; unset: the environment's.", examples=["us-east-1"]
    )
    addressing: Literal["path", "virtual", "auto"] | None = Field(
        default=None,
        description="Where S3's bucket stands, in the path or in the host name; unset: in the path with an endpoint.",
    )


class Output(Section):
    """Local files."""

    root: Text = Field(default="outputs", description="Folder under which a run makes its own.")


__all__ = ["Checkpoint", "Output", "Paths", "RunTrainer", "Store", "Trainer"]
