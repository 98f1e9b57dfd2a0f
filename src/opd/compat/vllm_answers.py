"""Requests to vLLM's servers as this project asks them: verl 0.9.1 has an output made after every token, and empties the prefix cache.

verl reads a request's last output alone; with 256 requests at once the others are a third of the work of the server's process.

With `rollout.keep_prefixes` the cache is kept over updates of the weights. Every request names the version of the weights under
which its response began, and finds the keys and values of such requests alone (vLLM's `cache_salt`). So nothing that is read is
older than its own response.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

_SALT = "cache_salt"


def begun_under(version: int) -> dict[str, Any]:
    """Return sampling parameters of a response that began under the weights of that version; without them it is the present version."""
    return {"extra_args": {_SALT: str(version)}}


def server_of(server: type[Any], *, keeps_prefixes: bool = False) -> type[Any]:
    """Return verl's `vLLMHttpServer`, which asks for a request's last output alone, and for no text."""

    class Server(server):
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
