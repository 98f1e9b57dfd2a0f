"""The sections of the run itself: trainer, checkpoints, store, output."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from opd.config.base import Count, Natural, Section, Text, Weight, key

Logger = Literal["console", "file", "wandb", "mlflow", "tensorboard"]
Port = Annotated[int, Field(ge=1024, le=65535)]
Every = Annotated[int, Field(ge=-1)]
ServerUrl = Annotated[str, Field(pattern=r"^https?://[^/@\s]+$")]


class RunTrainer(Section):
    """Resources and logging, for every kind that starts verl."""

    nnodes: Count = key("Nodes.", 1)
    gpus_per_node: Count = key("Ranks on a node.")
    loggers: tuple[Logger, ...] = key("Where metrics go, beside the run's own.", ("console",), min_length=1)
    project: Text = key("Project name in wandb, mlflow and tensorboard.", "opd")
    master_port: Port | None = key("Port of torch's rendezvous; unset: a free one.", None)
    stall_floor_s: Weight = key("Seconds without progress that are never a stall; 0: nothing is.", 900.0)
    stall_factor: float = key("Medians of a phase's own silences after which it is stalled and ended.", 10.0, ge=1)


class Trainer(RunTrainer):
    """Length and rhythm of a training run, in steps unless said otherwise."""

    total_epochs: Count = key("Passes over the training prompts.", 15)
    total_steps: Count | None = key("Stop after this many steps; unset: by epochs.", None)
    save_freq: Every = key("Steps between checkpoints; -1 or 0: none.", 20)
    test_freq: Every = key("Steps between validations; -1 or 0: none.", 5)
    val_before_train: bool = key("Validate before the first step.")
    max_skipped_updates: Natural = key("End the run after so many updates in a row that are not finite; 0: never.", 20)
    monitor: bool = key("Detect silent training faults (frozen weights, wrong template, ...) and log them.", True)
    resume: Literal["auto", "never"] = key("Continue from the newest complete checkpoint.", "auto")


class Checkpoint(Section):
    """The checkpoints that stay."""

    keep_last: Count | None = key("Keep this many newest checkpoints; unset: all.", None)
    keep_every: Count | None = key("Keep every checkpoint whose step is a multiple, for good.", None)
    overlap: bool = key("Write and upload a checkpoint while the next steps train, where host memory has room.", True)


class Store(Section):
    """The object store of results, metrics and checkpoints."""

    url: Text = key(
        "fsspec URL (s3://, file://; gs:// with opd[gcs], az:// with opd[azure]) or local folder; never with credentials.",
        examples=["s3://experiments/opd"],
    )
    endpoint: ServerUrl | None = key(
        "S3 server other than AWS's; egress to it is opened.", None, examples=["https://minio.example:9000"]
    )
    region: Text | None = key("S3 region; unset: the environment's.", None, examples=["us-east-1"])
    addressing: Literal["path", "virtual", "auto"] | None = key(
        "Place of S3's bucket, in the path or in the host name; unset: in the path with an endpoint.", None
    )


class Output(Section):
    """Local files."""

    root: Text = key("Folder under which a run makes its own.", "outputs")
