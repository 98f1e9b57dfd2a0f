"""From prompts to scored answers: the rollout manager and its workers, the schedule carry, the seed of each request, the call of the reward function.

What asks a model for answers belongs here; `opd.rollout.cpu` is the server that answers on a machine without a GPU.
"""
