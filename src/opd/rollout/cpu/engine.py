"""The batching text generator: requests in, answers out, with every shape independent of the load.

A request's bits depend on the weights, its prompt, its sampling parameters and its seed only. What that takes:
every forward has a shape that follows from the request's own length (rows are padded with idle ones, never fewer);
where a row stands in its batch does not enter its arithmetic (`ROW_UNIT`, and `check_rows` asks this machine); each
random number is a pure function of the request's seed and the position; requests share nothing, so there is
no prefix cache.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from opd.rollout.cpu.cache import PromptCache, RowCache, kv_bucket, prompt_bucket
from opd.rollout.cpu.config import ROW_UNIT, EngineConfig
from opd.rollout.cpu.model import layer_shapes
from opd.rollout.cpu.request import Answer, Request
from opd.rollout.cpu.sampling import choose_tokens, parse_sampling_params, uniforms


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
            tokens[row], positions[row], seeds[row] = request.next_input, request.position, request.sampling.seed
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


PREFILL_TOKENS = 1024
"""Rows x length of a prefill batch, about; a longer prompt is a batch of its own. Part of an answer's arithmetic."""
_NUM_CHECKS = 8
"""Tokens that `check_rows` tries: most rows agree by chance where only a last bit depends on the place."""


class RolloutEngine:
    """Continuous batching over one model on the CPU; not thread-safe: one thread calls it.

    Args:
        model: a causal language model of `opd.rollout.cpu.model.build_model`.
        config: limits and shapes.

    Raises:
        RuntimeError: torch computes with several threads here. A row's bits then depend on which of them computed it (the
            scratch memory of attention's second thread is aligned otherwise); small models gain at most a sixth by it.
    """

    def __init__(self, model: torch.nn.Module, config: EngineConfig) -> None:
        if torch.get_num_threads() != 1:
            raise RuntimeError(
                f"the rollout engine needs one thread, torch has {torch.get_num_threads()}: call torch.set_num_threads(1) "
                "in the thread that builds and steps it"
            )
        self.model = model
        self.config = config
        self._layer_shapes = layer_shapes(model.config)
        self._waiting: deque[Request] = deque()
        self._batches: dict[int, list[DecodeBatch]] = {}

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        script: Callable[[list[int]], list[int] | None] | None = None,
    ) -> Request:
        """Queue a request; a `script` may prescribe the answer to a prompt.

        Raises:
            ValueError: an empty prompt, a token outside the vocabulary, a prompt that leaves no room for an answer, or
                sampling parameters that cannot be honoured.
        """
        config = self.config
        prompt = [int(token) for token in prompt_ids]
        if not prompt:
            raise ValueError(f"request {request_id}: the prompt is empty; it needs at least one token")
        if len(prompt) >= config.max_model_len:
            raise ValueError(
                f"request {request_id}: a prompt of {len(prompt)} tokens leaves no room for an answer within "
                f"max_model_len={config.max_model_len}; shorten the prompt or raise max_model_len"
            )
        outside = next((token for token in prompt if not 0 <= token < config.vocab_size), None)
        if outside is not None:
            raise ValueError(f"request {request_id}: prompt token {outside} is outside [0, {config.vocab_size})")
        sampling = parse_sampling_params(sampling_params, len(prompt), config)
        reply = script(prompt) if script is not None else None
        request = Request(request_id=request_id, prompt_ids=prompt, sampling=sampling, script=reply)
        self._waiting.append(request)
        return request

    @property
    def num_running(self) -> int:
        return sum(len(batch.running) for batch in self._all_batches())

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + self.num_running

    # -- weights and memory -------------------------------------------------------------------------------------------

    def release_memory(self) -> None:
        """Free the key-value memory of batches without a request."""
        for length in list(self._batches):
            self._batches[length] = [batch for batch in self._batches[length] if batch.running]

    @torch.inference_mode()
    def check_rows(self) -> None:
        """Fill decode batches and a prefill with equal rows and compare the rows' bits.

        Raises:
            RuntimeError: a row's bits depend on where it stands, or the weights are not finite.
        """
        num_rows = self.config.num_slots
        batch = DecodeBatch(num_rows, kv_bucket(1), self._layer_shapes)
        for position in range(_NUM_CHECKS):
            positions = torch.full((num_rows,), position)
            tokens = positions * 7 % self.config.vocab_size
            logits = batch.next_logits(self.model, tokens, positions, num_rows)
            if not bool(logits.isfinite().all()):
                raise RuntimeError("the rollout's model gives logits that are not finite: are its weights sound?")
            _require_equal_rows(logits, f"a decode batch of {num_rows}")
        length = prompt_bucket(1)
        num_rows = self._num_prompt_rows(length)
        prompt = [index * 7 % self.config.vocab_size for index in range(length)]
        for keys in prefill(self.model, [prompt] * num_rows, num_rows, length).keys:
            _require_equal_rows(keys, f"a prefill of {num_rows} x {length}")

    # -- one step -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[tuple[Request, Answer]]:
        """Admit waiting requests, then generate one token for every running one; returns those that finished."""
        self._admit()
        finished = []
        for batch in list(self._all_batches()):
            if batch.running:
                finished += [(request, request.answer()) for request in batch.decode(self.model, self.config)]
        self._move_grown_rows()
        return finished

    def _all_batches(self) -> Iterator[DecodeBatch]:
        for length in sorted(self._batches):
            yield from self._batches[length]

    def _num_prompt_rows(self, length: int) -> int:
        """Rows of a prefill of that length: about the budget, and a multiple of `ROW_UNIT` tokens."""
        unit = ROW_UNIT // math.gcd(ROW_UNIT, length)
        return max(unit, PREFILL_TOKENS // length // unit * unit)

    def _admit(self) -> None:
        """Prefill waiting requests, grouped by padded length, as far as `max_num_seqs` allows."""
        room = self.config.max_num_seqs - self.num_running
        groups: dict[int, list[Request]] = {}
        for _ in range(min(room, len(self._waiting))):
            request = self._waiting.popleft()
            # The last prompt token is read by the first decode step, so that all logits come from one kind of forward.
            num_prefilled = len(request.prompt_ids) - 1
            groups.setdefault(prompt_bucket(num_prefilled) if num_prefilled else 0, []).append(request)
        for request in groups.pop(0, []):
            self._place(request)
        for length, requests in sorted(groups.items()):
            num_rows = self._num_prompt_rows(length)
            for start in range(0, len(requests), num_rows):
                group = requests[start : start + num_rows]
                cache = prefill(self.model, [request.prompt_ids[:-1] for request in group], num_rows, length)
                for source_row, request in enumerate(group):
                    batch, row = self._place(request)
                    batch.cache.fill_row(row, cache, source_row, request.position)

    def _place(self, request: Request) -> tuple[DecodeBatch, int]:
        """Give the request a free row in a batch of its length, adding a batch if all are full."""
        length = kv_bucket(request.position + 1)
        batches = self._batches.setdefault(length, [])
        batch = next((batch for batch in batches if batch.free_row is not None), None)
        if batch is None:
            batch = DecodeBatch(self.config.num_slots, length, self._layer_shapes)
            batches.append(batch)
        row = batch.free_row
        assert row is not None
        batch.rows[row] = request
        return batch, row

    def _move_grown_rows(self) -> None:
        """Move requests that filled their cache row to a batch of the next length."""
        for batch in list(self._all_batches()):
            for row, request in batch.running:
                if request.position >= batch.cache.length:
                    batch.rows[row] = None
                    target, target_row = self._place(request)
                    target.cache.fill_row(target_row, batch.cache, row, request.position)


def _require_equal_rows(rows: torch.Tensor, what: str) -> None:
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        raise RuntimeError(
            f"a row's place in {what} changes its bits on this machine, so answers would depend on their batch mates; "
            "try another num_slots"
        )
