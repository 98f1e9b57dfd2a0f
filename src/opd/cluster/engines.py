"""vLLM engines that have died while their servers' actors live on: what such a server was told last, it may never answer."""

from __future__ import annotations

import contextlib

import ray

from opd.cluster.lost import PATIENCE_S
from opd.cluster.watch import Look
from opd.errors import PartLost

_SERVERS = "vllm_server"  # how verl names their actors begins so
_ANSWER_S = 2.0


def look_for_dead_engines() -> Look:
    """For `Watch`: a request for an answer fails by itself then, weights or a sleep are waited for."""
    return Look(find=Engines().dead, patience_s=PATIENCE_S, error=PartLost)


class Engines:
    """Asks each vLLM server of the run for its engine; a server that is busy is not asked again before it has answered."""

    def __init__(self) -> None:
        self._asked: dict[str, ray.ObjectRef] = {}
        self._dead: set[str] = set()  # by their last answers

    def dead(self) -> dict[str, str]:
        """Engines that have died, a line each by their servers' names."""
        names = [name for name in ray.util.list_named_actors() if name.startswith(_SERVERS)]
        for name in names:
            if name not in self._asked:
                with contextlib.suppress(ValueError):  # the actor has ended in between
                    # In verl's words, and as a lambda, which travels whole; a server has no engine before it is launched.
                    self._asked[name] = ray.get_actor(name).__ray_call__.remote(
                        lambda server: getattr(getattr(server, "engine", None), "errored", False)
                    )
        answered, _ = ray.wait(list(self._asked.values()), num_returns=max(1, len(self._asked)), timeout=_ANSWER_S)
        for name in [name for name, call in self._asked.items() if call in answered]:
            self._dead.discard(name)
            with contextlib.suppress(ray.exceptions.RayError):  # a lost actor is another look's
                if ray.get(self._asked.pop(name)):
                    self._dead.add(name)
        self._dead.intersection_update(names)
        return {name: f"the engine of {name}: its process is gone" for name in self._dead}
