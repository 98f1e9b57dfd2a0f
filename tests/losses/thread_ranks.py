"""Ranks of a group as threads of one process, so that several of them can share one GPU, which NCCL refuses."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed


def run_ranks(world: int, work: Callable[[int], Any]) -> list[Any]:
    """`work(rank)` of as many ranks as threads; torch's own process group of threads joins them."""
    from torch.testing._internal.distributed.multi_threaded_pg import (
        ProcessLocalGroup,
        _install_threaded_pg,
        _uninstall_threaded_pg,
    )

    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    store = distributed.HashStore()
    results: list[Any] = [None] * world

    def rank_main(rank: int) -> None:
        try:
            distributed.init_process_group("threaded", rank=rank, world_size=world, store=store)
            results[rank] = work(rank)
        except BaseException as error:  # noqa: BLE001  # raised again in the test's own thread
            results[rank] = error
            ProcessLocalGroup.exception_handle(error)

    try:
        threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
    finally:
        ProcessLocalGroup.reset()
        _uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
