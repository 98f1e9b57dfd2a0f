"""`threading` and `concurrent.futures` in the modules under test: the same classes, whose waiting is the scheduler's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulator.scheduler import Killed, Scheduler, Task


class Threads:
    """`threading` for the control code: the same classes, whose waiting is the scheduler's."""

    world: Scheduler

    class Lock:
        def __init__(self) -> None:
            self.owner: Task | None = None
            self.waiters: list[Task] = []

        def acquire(self) -> bool:
            world = Threads.world
            while self.owner is not None and not self.owner.is_done:
                if world.current.process.is_dead:
                    raise Killed
                self.waiters.append(world.current)
                world.block()
            self.owner = world.current
            return True

        def release(self) -> None:
            self.owner = None
            while self.waiters:
                Threads.world.wake(self.waiters.pop(0))

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *error: object) -> None:
            self.release()

    class Event:
        def __init__(self) -> None:
            self._is_set = False
            self._waiters: list[Task] = []

        def is_set(self) -> bool:
            return self._is_set

        def set(self) -> None:
            self._is_set = True
            waiters, self._waiters = self._waiters, []
            for task in waiters:
                Threads.world.wake(task)

        def wait(self, timeout: float | None = None) -> bool:
            world = Threads.world
            if world.current.process.is_dead:
                raise Killed
            if not self._is_set:
                self._waiters.append(world.current)
                world.block(None if timeout is None else world.now_s + timeout)
            return self._is_set

    class Thread:
        def __init__(self, *, target: Callable[..., Any], name: str = "thread", daemon: bool = False, args: tuple = ()):
            self._call, self.name, self._task = (lambda: target(*args)), name, None
            self.daemon = daemon

        def start(self) -> None:
            world = Threads.world
            if world.current.process.is_dead:
                raise Killed
            self._task = world.spawn(world.current.process, self.name, self._call)

        def join(self, timeout: float | None = None) -> None:
            world = Threads.world
            world.join(self._task, None if timeout is None else world.now_s + timeout)

    @staticmethod
    def main_thread() -> Task:
        return Threads.world.current.process.tasks[0]

    @staticmethod
    def current_thread() -> Task:
        return Threads.world.current


class Pool:
    """`ThreadPoolExecutor`: `map` with its order, its errors, and the fate of the calls after an error."""

    def __init__(self, max_workers: int):
        self._num, self._todo, self._tasks = max_workers, [], []

    def map(self, call: Callable[[Any], Any], items: Any) -> Any:
        world, results = Threads.world, []
        for index, item in enumerate(items):
            results.append(None)
            self._todo.append((index, item))
        failed: dict[int, BaseException] = {}

        def work() -> None:
            while self._todo:
                index, item = self._todo.pop(0)
                try:
                    results[index] = call(item)
                except Killed:
                    raise
                except BaseException as error:  # noqa: BLE001 - as a future keeps it
                    failed[index] = error
                done.add(index)
                for task in waiting:
                    world.wake(task)

        done: set[int] = set()
        waiting: list[Task] = []
        process = world.current.process
        for _ in range(min(self._num, len(results))):
            self._tasks.append(world.spawn(process, "pool", work))

        def answers() -> Any:
            for index in range(len(results)):
                while index not in done:
                    waiting[:] = [world.current]
                    world.block()
                if index in failed:
                    self._todo.clear()  # as `result_iterator` cancels the rest
                    raise failed[index]
                yield results[index]

        return answers()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self._todo.clear()
        if wait:
            for task in self._tasks:
                Threads.world.join(task)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
