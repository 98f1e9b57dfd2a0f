"""The batching text generator: requests in, answers out, with every shape independent of the load.

A request's bits depend on the model, its prompt, its sampling parameters and its seed only. What that takes:
every forward has a shape fixed by the request's own length (rows are padded with idle ones, never fewer); a row's
position in its batch does not enter its arithmetic (checked on this machine's kernels when the engine starts); each
random number is a pure function of the request's seed and the position (`philox`); nothing is shared between requests,
so there is no prefix cache.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from opd.rollout.cache import PromptCache, RowCache, kv_bucket, prompt_bucket
from opd.rollout.config import EngineConfig
from opd.rollout.model import check_row_invariance, layer_shapes
from opd.rollout.philox import uniforms
from opd.rollout.request import Answer, Request, derive_seed
from opd.rollout.sampling import choose_tokens, parse_sampling_params

MIN_ROWS = 8
"""Fewest rows of a matrix product here: below a few rows BLAS libraries switch to other kernels with other bits."""


class DecodeBatch:
    """Requests of one length bucket, one a row, and their cache."""

    def __init__(self, num_rows: int, length: int, shapes: list[tuple[int, int]]) -> None:
        self.cache = RowCache(num_rows, length, shapes)
        self.requests: list[Request | None] = [None] * num_rows

    def free_row(self) -> int | None:
        return next((row for row, request in enumerate(self.requests) if request is None), None)

    @property
    def empty(self) -> bool:
        return all(request is None for request in self.requests)


class RolloutEngine:
    """Continuous batching over one model on the CPU; not thread-safe: one thread calls it.

    Args:
        model: a Hugging Face causal language model in fp32 with attention `opd.rollout.cache.ATTENTION`.
        config: limits and shapes.

    Raises:
        RuntimeError: the linear kernels of this machine are not row-invariant in the shapes used.
    """

    def __init__(self, model: torch.nn.Module, config: EngineConfig) -> None:
        self.model = model.eval()
        self.config = config
        self.num_steps = 0
        self._shapes = layer_shapes(model.config)
        self._waiting: deque[Request] = deque()
        self._batches: dict[int, list[DecodeBatch]] = {}
        self._seen: Counter[int] = Counter()
        check_row_invariance(self.model, (self._decode_rows(kv_bucket(1)), MIN_ROWS))

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        script: list[int] | None = None,
    ) -> Request:
        """Queue a request.

        A request without a seed gets one from the engine's seed, its prompt, and how many equal prompts came before it
        since the weights were loaded: samples of one prompt differ, and as a set they are reproducible.

        Raises:
            ValueError: an empty prompt, a token outside the vocabulary, a prompt that leaves no room for an answer, or
                sampling parameters that cannot be honoured.
        """
        prompt = [int(token) for token in prompt_ids]
        if not prompt:
            raise ValueError(f"request {request_id}: the prompt is empty; it needs at least one token")
        if len(prompt) >= self.config.max_model_len:
            raise ValueError(
                f"request {request_id}: a prompt of {len(prompt)} tokens leaves no room within "
                f"max_model_len={self.config.max_model_len}; shorten it or raise max_model_len"
            )
        outside = next((token for token in prompt if not 0 <= token < self.config.vocab_size), None)
        if outside is not None:
            raise ValueError(f"request {request_id}: prompt token {outside} is outside [0, {self.config.vocab_size})")
        sampling = parse_sampling_params(sampling_params, len(prompt), self.config)
        seed = self._own_seed(prompt) if sampling.seed is None else sampling.seed
        request = Request(request_id=request_id, prompt_ids=prompt, sampling=sampling, seed=seed, script=script)
        self._waiting.append(request)
        return request

    def _own_seed(self, prompt: list[int]) -> int:
        key = derive_seed(prompt)
        self._seen[key] += 1
        return derive_seed(self.config.seed, prompt, self._seen[key])

    def abort(self, request_id: str | None = None) -> list[tuple[Request, Answer]]:
        """Stop the request of that id (all of them for None); their answers keep what was generated."""
        stopped = [r for r in self._waiting if request_id in (None, r.request_id)]
        self._waiting = deque(r for r in self._waiting if r not in stopped)
        for batch in self._all_batches():
            for row, request in enumerate(batch.requests):
                if request is not None and request_id in (None, request.request_id):
                    stopped.append(request)
                    batch.requests[row] = None
        return [(request, request.answer("aborted")) for request in stopped]

    @property
    def num_running(self) -> int:
        return sum(request is not None for batch in self._all_batches() for request in batch.requests)

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + self.num_running

    def forget(self) -> None:
        """New weights have come: count prompts afresh for the seeds of requests that bring none."""
        self._seen.clear()

    def release_memory(self) -> None:
        """Free the key-value memory of batches without a request."""
        for length in list(self._batches):
            self._batches[length] = [batch for batch in self._batches[length] if not batch.empty]

    # -- one step -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[tuple[Request, Answer]]:
        """Admit waiting requests, then generate one token for every running one; returns those that finished."""
        self.num_steps += 1
        self._admit()
        finished = []
        for batch in list(self._all_batches()):
            if not batch.empty:
                finished += self._decode(batch)
        self._move_grown_rows()
        return finished

    def _all_batches(self) -> Iterator[DecodeBatch]:
        for length in sorted(self._batches):
            yield from self._batches[length]

    def _admit(self) -> None:
        room = self.config.max_num_seqs - self.num_running
        admitted = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        by_bucket: dict[int, list[Request]] = {}
        for request in admitted:
            # The last prompt token is read by the first decode step, so that all logits come from one kind of forward.
            num_prefilled = len(request.prompt_ids) - 1
            by_bucket.setdefault(prompt_bucket(num_prefilled) if num_prefilled else 0, []).append(request)
        for length, requests in sorted(by_bucket.items()):
            rows = max(1, self.config.prefill_tokens_per_batch // length) if length else len(requests)
            for start in range(0, len(requests), rows):
                self._prefill(requests[start : start + rows], rows, length)

    def _prefill(self, requests: list[Request], num_rows: int, length: int) -> None:
        cache = PromptCache()
        if length:
            tokens = torch.zeros(num_rows, length, dtype=torch.int64)
            for row, request in enumerate(requests):
                tokens[row, : len(request.prompt_ids) - 1] = torch.tensor(request.prompt_ids[:-1])
            positions = torch.arange(length).expand(num_rows, length)
            # Padding stands right of the prompt, where causal attention hides it; the logits are not used.
            self.model(
                input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        for row, request in enumerate(requests):
            batch, target = self._place(request)
            if length:
                batch.cache.fill_row(target, cache, row, len(request.prompt_ids) - 1)

    def _decode_rows(self, length: int) -> int:
        return max(MIN_ROWS, min(self.config.num_slots, self.config.kv_tokens_per_batch // length))

    def _place(self, request: Request) -> tuple[DecodeBatch, int]:
        """Give the request a free row in a batch of its length, adding a batch if all are full."""
        length = kv_bucket(request.position + 1)
        batches = self._batches.setdefault(length, [])
        for batch in batches:
            row = batch.free_row()
            if row is not None:
                break
        else:
            batch, row = DecodeBatch(self._decode_rows(length), length, self._shapes), 0
            batches.append(batch)
        batch.requests[row] = request
        return batch, row

    def _move_grown_rows(self) -> None:
        for batch in list(self._all_batches()):
            for row, request in enumerate(batch.requests):
                if request is not None and request.position >= batch.cache.length:
                    batch.requests[row] = None
                    target, target_row = self._place(request)
                    target.cache.fill_row(target_row, batch.cache, row, request.position)

    def _decode(self, batch: DecodeBatch) -> list[tuple[Request, Answer]]:
        rows = [(row, request) for row, request in enumerate(batch.requests) if request is not None]
        num_rows = len(batch.requests)
        columns = np.zeros((6, num_rows), dtype=np.float64)
        columns[5] = -1
        seeds = np.zeros(num_rows, dtype=np.uint64)
        for row, request in rows:
            sampling = request.sampling
            columns[:, row] = (
                request.next_input,
                request.position,
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                request.forced_token,
            )
            seeds[row] = request.seed
        positions = torch.from_numpy(columns[1].astype(np.int64))
        logits = self.model(
            input_ids=torch.from_numpy(columns[0].astype(np.int64))[:, None],
            position_ids=positions[:, None],
            attention_mask=batch.cache.set_positions(positions),
            past_key_values=batch.cache,
            use_cache=True,
        ).logits[:, -1, : self.config.vocab_size]
        tokens, logprobs = choose_tokens(
            logits,
            temperature=torch.from_numpy(columns[2].astype(np.float32)),
            top_k=torch.from_numpy(columns[3].astype(np.int64)),
            top_p=torch.from_numpy(columns[4].copy()),
            uniform=torch.from_numpy(uniforms(seeds, columns[1].astype(np.uint64))),
            forced=torch.from_numpy(columns[5].astype(np.int64)),
            logprobs_mode=self.config.logprobs_mode,
        )
        finished = []
        for (row, request), token, logprob in zip(
            rows, tokens[[row for row, _ in rows]].tolist(), logprobs[[row for row, _ in rows]].tolist(), strict=True
        ):
            if request.append(token, logprob):
                batch.requests[row] = None
                finished.append((request, request.answer()))
        return finished
