"""The trainer: everything that imports verl and ray (worker, engines, trainer, rollout manager, entry points)."""
