"""vLLM's servers answer once a request: verl 0.9.1 has vLLM make an output, with its text, after every token, and reads the last one's tokens.

With 256 requests at once that is a third of what the server's process does while they decode, on the host whose other processes
schedule and launch each decoding step.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any


def server_of(server: type[Any]) -> type[Any]:
    """verl's `vLLMHttpServer`, which asks for a request's last output alone, and for no text."""

    class Server(server):
        async def run_server(self, args: Any) -> None:
            from vllm.sampling_params import RequestOutputKind

            await super().run_server(args)
            generate = self.engine.generate

            def once(prompt: Any, sampling_params: Any, *more: Any, **others: Any) -> AsyncGenerator[Any, None]:
                sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
                sampling_params.detokenize = bool(sampling_params.stop)  # texts that end an answer are looked for in it
                answer: AsyncGenerator[Any, None] = generate(prompt, sampling_params, *more, **others)
                return answer

            self.engine.generate = once

    return Server
