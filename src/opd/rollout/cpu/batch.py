"""The two kinds of forward: a prefill of several prompts, and one decode step of a batch of requests."""

from collections.abc import Sequence

import numpy as np
import torch

from opd.rollout.cpu.cache import PromptCache, RowCache
from opd.rollout.cpu.config import EngineConfig
from opd.rollout.cpu.philox import uniforms
from opd.rollout.cpu.request import Request
from opd.rollout.cpu.sampling import choose_tokens


def prefill(model: torch.nn.Module, prompts: Sequence[Sequence[int]], num_rows: int, length: int) -> PromptCache:
    """Keys and values of up to `num_rows` prompts, each padded on the right to `length`.

    The shape is [num_rows, length] however few prompts there are. Padding stands right of a prompt, where causal
    attention hides it; the logits are not used.
    """
    tokens = torch.zeros(num_rows, length, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    positions = torch.arange(length).expand(num_rows, length)
    cache = PromptCache()
    model(input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


class DecodeBatch:
    """Requests of one length bucket, one a row, and their cache; rows without a request idle along."""

    def __init__(self, num_rows: int, length: int, layer_shapes: list[tuple[int, int]]) -> None:
        self.cache = RowCache(num_rows, length, layer_shapes)
        self.rows: list[Request | None] = [None] * num_rows

    @property
    def running(self) -> list[tuple[int, Request]]:
        """(row, request) of every occupied row."""
        return [(row, request) for row, request in enumerate(self.rows) if request is not None]

    @property
    def free_row(self) -> int | None:
        """The first row without a request."""
        return next((row for row, request in enumerate(self.rows) if request is None), None)

    def next_logits(
        self, model: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, num_used: int
    ) -> torch.Tensor:
        """Read one token a row ([num_rows] int64, at its position) and return the logits that follow, [num_rows, V].

        Rows from `num_used` on are idle: what comes back for them means nothing.
        """
        logits: torch.Tensor = model(
            input_ids=tokens[:, None],
            position_ids=positions[:, None],
            attention_mask=self.cache.set_positions(positions, num_used),
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        return logits[:, -1]

    def decode(self, model: torch.nn.Module, config: EngineConfig) -> list[Request]:
        """Give every request (there is at least one) its next token; returns those that are complete, their rows freed.

        Raises:
            RuntimeError: logits that are not finite.
        """
        running = self.running
        num_rows = len(self.rows)
        tokens, positions, seeds = (
            np.zeros(num_rows, np.int64),
            np.zeros(num_rows, np.int64),
            np.zeros(num_rows, np.uint64),
        )
        temperature, top_p = np.zeros(num_rows, np.float32), np.ones(num_rows, np.float64)
        top_k, forced = np.zeros(num_rows, np.int64), np.full(num_rows, -1, np.int64)
        for row, request in running:
            tokens[row], positions[row], seeds[row] = request.next_input, request.position, request.seed
            temperature[row], top_p[row] = request.sampling.temperature, request.sampling.top_p
            top_k[row], forced[row] = request.sampling.top_k, request.forced_token
        num_used = running[-1][0] + 1
        logits = self.next_logits(model, torch.from_numpy(tokens), torch.from_numpy(positions), num_used)
        chosen, logprobs = choose_tokens(
            logits[:, : config.vocab_size],
            temperature=torch.from_numpy(temperature),
            top_k=torch.from_numpy(top_k),
            top_p=torch.from_numpy(top_p),
            uniform=torch.from_numpy(uniforms(seeds, positions.astype(np.uint64))),
            forced=torch.from_numpy(forced),
            logprobs_mode=config.logprobs_mode,
        )
        if bool(logprobs.isnan().any()):
            raise RuntimeError("the rollout's model gives logits that are not finite: are its weights sound?")
        chosen_list, logprob_list = chosen.tolist(), logprobs.tolist()
        complete = []
        for row, request in running:
            if request.append(chosen_list[row], logprob_list[row]):
                self.rows[row] = None
                complete.append(request)
        return complete
