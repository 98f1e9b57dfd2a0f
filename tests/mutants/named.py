"""Mutants that once lived: what a person broke by hand, and no test noticed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DURABLE = ("tests/runs/test_durability.py",)
_CHOICE = ("tests/runs/test_checkpoint_choice.py",)
_SAVING = ("tests/runs/test_checkpoint_saving.py",)
_RETENTION = ("tests/runs/test_retention.py",)
_ATTEMPTS = ("tests/runs/test_attempts.py",)
_RANKS = ("tests/worker/test_checkpointing.py",)
_COUNTS = ("tests/worker/test_step_metrics.py",)
_WORKER = ("tests/worker/test_worker_invariance.py",)


def _mutant(file: str, what: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(file=file, what=what, old=old, new=new, tests=tests)


_LOCAL = "store/local.py"
NAMED = [
    _mutant("store/durable.py", "nothing is synced at all", "        os.fsync(descriptor)", "        pass", _DURABLE),
    _mutant("store/durable.py", "new folders are not synced", "    for path in reversed(above):", "    for path in ():", _DURABLE),
    _mutant("store/durable.py", "names of saved files are not synced", "    for folder in deepest_first:", "    for folder in ():", _DURABLE),
    _mutant(_LOCAL, "bytes of a put are not synced", "        os.fsync(file.fileno())", "        pass", _DURABLE),
    _mutant(_LOCAL, "bytes of an uploaded file are not synced", "            fsync_file(temporary)\n", "", _DURABLE),
    _mutant(_LOCAL, "the name of a created object is not synced", "        fsync_folder(target.parent)\n", "", _DURABLE),
    _mutant(_LOCAL, "a removed name is not synced", "        fsync_folder(self.local_path(key).parent)\n", "", _DURABLE),
    _mutant("store/durable.py", "bytes of saved files are not synced", "        if sync:\n", "        if False:\n", _DURABLE),
    _mutant("runs/metrics.py", "metrics are not synced", "                os.fsync(self._descriptor)\n", "", _DURABLE),
    _mutant("runs/checkpoints.py", "a seal does not wait for the metrics", "        self.before_local_seal()\n", "", _DURABLE),
    _mutant(_LOCAL, "put in place instead of by rename",
            "            _write_synced(temporary, data)\n            os.replace(temporary, self.local_path(key))",
            "            self.local_path(key).write_bytes(data)", _DURABLE),
    _mutant("runs/checkpoints.py", "no ownership check between manifest and COMPLETE", "    check()\n", "", _SAVING),
    _mutant("runs/shards.py", "files are moved in although others are damaged",
            "        if not problems:\n            problems = find_problems(folder, _move_in",
            "        if True:\n            problems = find_problems(folder, _move_in", _CHOICE),
    _mutant("runs/process.py", "the boot is ignored", "(self.host, self.boot_id, self.pid_namespace) != (here.host, here.boot_id, here.pid_namespace)",
            "(self.host, self.pid_namespace) != (here.host, here.pid_namespace)", _ATTEMPTS),
    _mutant("runs/process.py", "the host is ignored", "(self.host, self.boot_id, self.pid_namespace) != (here.host, here.boot_id, here.pid_namespace)",
            "(self.boot_id, self.pid_namespace) != (here.boot_id, here.pid_namespace)", _ATTEMPTS),
    _mutant("runs/attempts.py", "a lease is judged by our clock", "arbiter.check_create_only() - time.monotonic()",
            "time.time() - time.monotonic()", _ATTEMPTS),
    _mutant("runs/attempts.py", "the highest attempt is the arbiter's", "max(highest_attempt(store) for store in stores)",
            "highest_attempt(stores[0])", _ATTEMPTS),
    _mutant("runs/run.py", "no second look for the run's end", "            refuse_if_over(stores[0])  #", "            pass  #", ("tests/runs/test_run.py",)),
    _mutant("runs/identity.py", "the identity is not compared after a lost race",
            "                store.create(RUN_FILE, json_bytes(record))\n            _compare(store, run_id, spec_hash, identity)",
            "                store.create(RUN_FILE, json_bytes(record))", ("tests/runs/test_identity.py",)),
    _mutant("runs/stream.py", "parts are not cut at line ends", "data[: line_end or self.part_bytes]",
            "data[: self.part_bytes]", ("tests/runs/test_stream.py",)),
    _mutant("inputs/fetch.py", "an object's name may lead out of the folder", "if leads_out(info.key)]", "if False]", ("tests/runs/test_fetched.py",)),
    _mutant("store/base.py", "an object's name may lead out of the folder that is pulled",
            'return path.is_absolute() or ".." in path.parts', "return False", ("tests/opdctl/test_download.py",)),
    _mutant("runs/checkpoints.py", "steps that no resume takes are counted", "filter(is_fit, reversed(complete))", "reversed(complete)", _RETENTION),
    _mutant("runs/checkpoints.py", "the step just sealed may go", "self.resumed_step, self._sealed_step)", "self.resumed_step)", _RETENTION),
    _mutant("runs/checkpoints.py", "the store is believed", "for problem in find_wrong_sizes(remote, manifest, is_own_disk=False)]", "for problem in ()]", _RETENTION),
    _mutant("compat/plain_loads.py", "verl unpickles", '{**kwargs, "weights_only": True}', "kwargs", ("tests/compat/test_plain_loads.py",)),
    _mutant("worker/checkpointing.py", "ranks' disks are not pruned",
            '        beside_training(worker_group, "delete_shards", run_dir=run.handle.local_dir, steps=deleted)\n', "        pass\n", _RANKS),
    _mutant("worker/checkpointing.py", "a seal without check_owner", "    run.checkpoints.check_owner()  #", "    pass  #", _RANKS),
    _mutant("worker/step_metrics.py", "non-finite tokens are not counted", "float(output.nonfinite.sum())", "0.0", _COUNTS),
    _mutant("worker/engines.py", "agreement is measured in every update", "first_update=self.num_updates == 0", "first_update=True", _WORKER),
    _mutant("worker/engines.py", "num_updates is never incremented", "        self.num_updates += 1\n", "", _WORKER),
    _mutant("worker/opd_worker.py", "the hidden cache is not cleared", "            cache.clear()\n", "", _WORKER),
    _mutant("worker/opd_worker.py", "sample_weights are ignored", ', sample_weights=data["sample_weights"])', ")", _WORKER),
]  # fmt: skip
