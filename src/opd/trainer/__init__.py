"""The driver's side of a run: composing verl's config, claiming the run, steps, evaluation, metrics, trackers.

What happens once a run or once a step belongs here; what every rank does belongs in `opd.update`.
"""
