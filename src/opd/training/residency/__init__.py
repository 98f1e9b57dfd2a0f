"""What is on the device in which phase of a distillation step: sized from model configs and batch before anything is loaded."""

from opd.training.residency.job import Job, Wish
from opd.training.residency.plan import Choice, Plan, make_plan
from opd.training.residency.shapes import ModelShape, Unplannable, read_shape

__all__ = ["Choice", "Job", "ModelShape", "Plan", "Unplannable", "Wish", "make_plan", "read_shape"]
