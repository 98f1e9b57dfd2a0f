"""Drawn mutants that nobody could notice, each with the reason: `make mutants` counts them apart."""

EQUIVALENT: dict[str, str] = {
    "inputs/fetch.py: _Mirror._sweep: time.time() - part.stat().st_mtime > STALE_PART_S -> time.time() - part.stat().st_mtime >= STALE_PART_S": (
        "a file's age is a float of nanoseconds, and never exactly an hour"
    ),
    'worker/checkpointing.py: seal: if deleted: beside_training(worker_group, "delete_shards", r -> if True: beside_training(worker_group, "delete_shards", run_': (
        "asked to delete no step, the ranks delete none: it saves them a call and the log a line"
    ),
    "worker/teacher_cache.py: HiddenCache.fetch: if not on_host: piece.copy_(part) -> if True: piece.copy_(part)": (
        "what lies on the host is copied twice, to the same place; only a GPU has such rows"
    ),
    'worker/opd_worker.py: OPDWorker._hidden_cache: if self._cache is None: gib = float("inf") if self.opd.cache -> if True: gib = float("inf") if self.opd.cache_gib is None el': (
        "a cache is empty between two steps: a new one holds the same, and only asks anew for its memory on the host"
    ),
}
