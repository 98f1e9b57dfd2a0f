"""Defines what a run adds to its spec: its folder, and whether a Ray cluster is already there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of one start that the spec does not hold.

    Attributes:
        run_id: the name people see; prefix in the store.
        run_dir: local folder of the run; None: no run directory, and so no store (plain Hydra use).
        in_ray_cluster: a cluster exists (RAY_ADDRESS): sizes given to `ray.init` would raise.
        model_path: local folder of a fetched model; None: `spec.model.path` as it is.
        teacher_path: local folder of a fetched teacher; None: `spec.teacher.path` as it is.
    """

    run_id: str
    run_dir: str | None
    in_ray_cluster: bool = False
    model_path: str | None = None
    teacher_path: str | None = None
