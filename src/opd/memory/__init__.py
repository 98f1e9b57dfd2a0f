"""What is on the device in which phase of a distillation step: sized from model configs and batch before anything is loaded."""

from opd.memory.job import Job, Wish
from opd.memory.phases import Choice
from opd.memory.plan import Plan, make_plan
from opd.memory.shapes import ModelShape, Unplannable, read_shape

__all__ = ["Choice", "Job", "ModelShape", "Plan", "Unplannable", "Wish", "make_plan", "read_shape"]
