"""verl 0.9.1's servers of vLLM as this project starts and asks them.

- A server takes the device once its ranks have loaded their models, so that its process and imports can begin meanwhile.
- verl has an output made after every token, and reads a request's last alone. With 256 requests at once the others are a third
  of the work of the server's process.
- verl empties the prefix cache after each update. With `rollout.keep_prefixes` it is kept. Every request names the version of the
  weights under which its response began, and finds the keys and values of such requests alone (vLLM's `cache_salt`). So nothing
  that is read is older than its own response.
"""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import ray
from verl.utils.device import get_resource_name

from opd.compat import quiet

_SALT = "cache_salt"


def begun_under(version: int) -> dict[str, Any]:
    """Return sampling parameters of a response that began under the weights of that version; without them it is the present version."""
    return {"extra_args": {_SALT: str(version)}}


def with_servers(replica: type[Any], *, keeps_prefixes: bool = False) -> type[Any]:
    """Return verl's replica of vLLM servers (`vLLMReplica`) with `server_of` of its servers."""

    class Replica(replica):
        server_class: Any

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            server = self.server_class.__ray_metadata__.modified_class
            self.server_class = ray.remote(server_of(server, keeps_prefixes=keeps_prefixes))

    return Replica


class Placed:
    """A rank that was asked for its node and devices before it began to load; pickled, it is the rank itself."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank
        # In verl's words, and as a lambda, which travels whole: by its name the rank would import this module first.
        self.answer = rank.__ray_call__.remote(
            lambda _: (
                ray.get_runtime_context().get_node_id(),
                ray.get_runtime_context().get_accelerator_ids()[get_resource_name()][0],
            )
        )
        self.__ray_call__ = SimpleNamespace(remote=lambda _: self.answer)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._rank,)


def _itself(rank: Any) -> Any:
    return rank


def server_of(server: type[Any], *, keeps_prefixes: bool = False) -> type[Any]:
    """Return verl's `vLLMHttpServer`, changed as above."""

    class Server(server):
        workers: list[Any]

        async def launch_server(self, *args: Any, **kwargs: Any) -> None:
            """Build the engine, which sizes its cache by what the models leave free; a rank that loads answers no call."""
            quiet.mute(server.__module__)  # it prints its arguments, a line each
            await asyncio.gather(*(worker.__ray_call__.remote(lambda _: None) for worker in self.workers))
            await super().launch_server(*args, **kwargs)

        async def run_server(self, args: Any) -> None:
            from vllm.sampling_params import RequestOutputKind

            await super().run_server(args)
            generate = self.engine.generate

            def once(prompt: Any, sampling_params: Any, *more: Any, **others: Any) -> AsyncGenerator[Any, None]:
                sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
                sampling_params.detokenize = bool(sampling_params.stop)  # texts that end an answer are looked for in it
                if keeps_prefixes:
                    salt = (sampling_params.extra_args or {}).get(_SALT, str(self.global_steps))
                    prompt = {**prompt, _SALT: salt}
                answer: AsyncGenerator[Any, None] = generate(prompt, sampling_params, *more, **others)
                return answer

            self.engine.generate = once

        async def clear_kv_cache(self) -> None:
            """Do what verl does after each update, or nothing: kept prefixes are found by responses of their version alone."""
            if not keeps_prefixes:
                await super().clear_kv_cache()

    return Server
