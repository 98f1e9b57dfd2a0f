"""vLLM's prefix cache kept over updates of the weights, for `rollout.keep_prefixes`; verl 0.9.1 empties it with each.

Every request names the version of the weights under which its response began, and finds the keys and values of such requests
alone (vLLM's `cache_salt`). So what is older than the weights is read by the responses that go on, and by nothing else: a response that begins
under new weights, or a validation, finds no prompt that earlier weights read, and nothing that is read is older than its own response.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

_SALT = "cache_salt"


def begun_under(version: int) -> dict[str, Any]:
    """Sampling parameters of a request whose response began under the weights of that version; without them: under the present ones."""
    return {"extra_args": {_SALT: str(version)}}


def server_of(server: type[Any]) -> type[Any]:
    """verl's `vLLMHttpServer`, which keeps its prefixes."""

    class Server(server):
        async def run_server(self, args: Any) -> None:
            await super().run_server(args)
            generate = self.engine.generate

            def salted(prompt: Any, sampling_params: Any, *more: Any, **others: Any) -> AsyncGenerator[Any, None]:
                salt = (sampling_params.extra_args or {}).get(_SALT, str(self.global_steps))
                asked: AsyncGenerator[Any, None] = generate({**prompt, _SALT: salt}, sampling_params, *more, **others)
                return asked

            self.engine.generate = salted

        async def clear_kv_cache(self) -> None:
            """Called after each update: nothing to do, for what is there is found by responses that go on alone."""

    return Server
