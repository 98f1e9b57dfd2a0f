"""The engine's thread: it alone touches the engine; everyone else posts calls that run between two steps."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from opd.rollout.cpu.engine import RolloutEngine
from opd.rollout.cpu.request import Answer, Request

Result = TypeVar("Result")
_Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]


class EngineThread:
    """Builds an engine in a thread of its own and steps it while it has requests.

    If building or a step raises, the thread ends and every waiting and every later call fails with that error.
    """

    def __init__(self, build: Callable[[], RolloutEngine]) -> None:
        """Start the thread and wait until `build` is done.

        Raises:
            RuntimeError: `build` failed; the cause is attached.
        """
        self._wake = threading.Condition()
        self._calls: list[tuple[Callable[[RolloutEngine], Any], _Waiter]] = []
        self._waiters: dict[Request, _Waiter] = {}
        self._failure: BaseException | None = None
        self._built = threading.Event()
        threading.Thread(target=self._run, args=(build,), name="rollout-engine", daemon=True).start()
        self._built.wait()
        if self._failure is not None:
            raise self._broken()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    async def call(self, function: Callable[[RolloutEngine], Result]) -> Result:
        """Run `function(engine)` in the thread and return its result or raise its ValueError or RuntimeError."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        with self._wake:
            if self._failure is not None:
                raise self._broken()
            self._calls.append((function, (asyncio.get_running_loop(), future)))
            self._wake.notify()
        return await future

    async def generate(self, submit: Callable[[RolloutEngine], Request]) -> tuple[Request, Answer]:
        """Run `submit(engine)` in the thread and wait for the answer to the request that it returns."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiter = (asyncio.get_running_loop(), future)

        def submit_and_wait(engine: RolloutEngine) -> Request:
            request = submit(engine)
            self._waiters[request] = waiter
            return request

        request = await self.call(submit_and_wait)
        return request, await future

    def abort(self, engine: RolloutEngine, request_id: str | None) -> list[str]:
        """In the thread (by `call`): stop requests and settle their callers; returns their ids."""
        stopped = engine.abort(request_id)
        for request, answer in stopped:
            _settle(self._waiters.pop(request), result=answer)
        return [request.request_id for request, _ in stopped]

    # -- inside the thread --------------------------------------------------------------------------------------------

    def _run(self, build: Callable[[], RolloutEngine]) -> None:
        try:
            engine = build()
            self._built.set()
            while True:
                self._run_calls(engine)
                for request, answer in engine.step():
                    _settle(self._waiters.pop(request), result=answer)
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread must reach those who wait for it
            self._fail(error)
        finally:
            self._built.set()

    def _run_calls(self, engine: RolloutEngine) -> None:
        """Run what was posted; sleep while there is neither a call nor a request."""
        with self._wake:
            while not self._calls and not engine.num_unfinished:
                self._wake.wait()
            calls, self._calls = self._calls, []
        for function, waiter in calls:
            try:
                result = function(engine)
            except (ValueError, RuntimeError) as error:
                _settle(waiter, error=error)
            else:
                _settle(waiter, result=result)

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            self._failure = error
            waiting = [waiter for _, waiter in self._calls] + list(self._waiters.values())
            self._calls = []
        for waiter in waiting:
            _settle(waiter, error=self._broken())

    def _broken(self) -> RuntimeError:
        error = RuntimeError(f"the rollout engine stopped: {type(self._failure).__name__}: {self._failure}")
        error.__cause__ = self._failure
        return error


def _settle(waiter: _Waiter, *, result: Any = None, error: BaseException | None = None) -> None:
    """Settle a future of another thread's loop; a caller that gave up meanwhile is not an error."""
    loop, future = waiter

    def settle() -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    loop.call_soon_threadsafe(settle)
