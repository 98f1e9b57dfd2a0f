"""One rank of the trainer: engines, the output head, the teacher's cache, sequence sharing, checkpoints of a rank.

What runs in Ray's worker processes on the accelerator belongs here; what the driver decides belongs in `opd.trainer`.
"""
