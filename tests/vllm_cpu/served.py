"""vLLM's own engine with a server of ours, without verl's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput


class Served:
    """verl's server as far as the changes of `opd.compat` go: an engine, asked in verl's words."""

    def __init__(self) -> None:
        self.global_steps = 0

    async def run_server(self, args: Any) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**vars(args)))

    async def outputs(self, name: str, tokens: list[int], **sampling: Any) -> list[RequestOutput]:
        """All that come."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        params, prompt = SamplingParams(**sampling), TokensPrompt(prompt_token_ids=tokens)
        asked = self.engine.generate(
            prompt=prompt, sampling_params=params, request_id=name, lora_request=None, priority=0
        )
        return [output async for output in asked]
