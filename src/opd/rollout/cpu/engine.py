"""The batching text generator: requests in, answers out, with every shape independent of the load.

A request's bits depend on the weights, its prompt, its sampling parameters and its seed only. So the shape of each forward
follows from the request's own length: idle rows pad the others. A row's place in its batch does not enter its arithmetic
(`ROW_UNIT`, and `check_rows` asks this machine). Each random number is a pure function of the request's seed and the position.
Requests share nothing, so there is no prefix cache.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from transformers import DynamicCache

from opd.rollout.cpu.cache import RowCache, kv_bucket, prompt_bucket
from opd.rollout.cpu.model import layer_shapes
from opd.rollout.cpu.sampling import SamplingParams, choose_tokens, uniform

ROW_UNIT = 32
"""Every batch holds a multiple of this many tokens, so that the place of a row cannot change its bits.

torch computes exp, sin, silu and the like two vectors at a time, at most 32 floats. It computes the rest at the end of a
tensor float by float, with other last bits. A multiple of 32 tokens leaves nothing over.
"""
NUM_LARGE = 16_000_000
"""Weights from which a forward costs more by its arithmetic than by its calls."""
_NUM_CHECKS = 8
"""Tokens that `check_rows` tries: most rows agree by chance where only a last bit depends on the place."""
_NOT_FINITE = "the rollout's model gives logits that are not finite: are its weights sound?"


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Limits of the engine, fixed for the life of a server."""

    vocab_size: int
    """Tokens the tokenizer knows (its length). Embedding rows beyond it are padding: never sampled, no probability, as in
    verl's vLLM server. verl's own actor counts them: its log-probabilities are lower by -log(1 - their mass)."""
    max_model_len: int
    """Longest sequence, prompt and answer together, in tokens."""
    response_length: int
    """Longest answer in tokens when a request names no `max_tokens`."""
    eos_token_ids: frozenset[int] = frozenset()
    """Tokens that end an answer (they are part of it)."""
    max_num_seqs: int = 1024
    """Requests that run at the same time; more wait in order of arrival."""


@dataclass(kw_only=True, eq=False)
class Request:
    """One prompt and its answer so far."""

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    script: list[int] | None = None
    """Tokens to answer with instead of sampled ones; log-probabilities are still the model's."""
    token_ids: list[int] = field(default_factory=list)
    """Answer tokens, an end token included."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each answer token, under temperature, top-k and top-p as sampled."""

    @property
    def position(self) -> int:
        """Return the index in the sequence of the token that the next decode step reads."""
        return len(self.prompt_ids) + len(self.token_ids) - 1

    @property
    def next_input(self) -> int:
        """Return that token."""
        return self.token_ids[-1] if self.token_ids else self.prompt_ids[-1]

    @property
    def forced_token(self) -> int:
        """Return the script's next token, -1 without a script."""
        return -1 if self.script is None else self.script[len(self.token_ids)]

    def append(self, token: int, logprob: float) -> bool:
        """Take the token chosen for this request; return True if the answer is complete."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if len(self.token_ids) >= self.sampling.max_tokens:
            return True
        return token in self.sampling.stop_token_ids if self.script is None else len(self.token_ids) == len(self.script)


class Shapes(NamedTuple):
    """Shapes of a model's forwards. They are part of an answer's arithmetic, so they follow from the model alone."""

    num_rows: int
    """Rows of a decode batch."""
    prefill_tokens: int
    """Rows x length of a prefill batch, about; a longer prompt is a batch of its own."""
    min_kv_length: int
    """Tokens of the shortest cache row."""

    @classmethod
    def of(cls, model: torch.nn.Module) -> Self:
        """Return few large forwards for a small model; for a large model, forwards with little padding."""
        num_weights = sum(weight.numel() for weight in model.parameters())
        return cls(2 * ROW_UNIT, 1024, 64) if num_weights < NUM_LARGE else cls(ROW_UNIT, 256, 256)


_IDLE = Request(request_id="", prompt_ids=[0], sampling=SamplingParams(max_tokens=1, temperature=0.0))


def prefill(
    model: torch.nn.Module, prompts: Sequence[Sequence[int]], num_rows: int, length: int
) -> tuple[list[Any], list[Any]]:
    """Return keys and values, [num_rows, kv_heads, length, head_dim] a layer, of up to `num_rows` prompts, each padded on the right to `length`.

    The shape is [num_rows, length] however few prompts there are. Padding is right of a prompt, where causal
    attention hides it; the logits are not used.
    """
    tokens = torch.zeros(num_rows, length, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    positions = torch.arange(length).expand(num_rows, length)
    cache = DynamicCache()
    model(input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
    layers: list[Any] = cache.layers
    return [layer.keys for layer in layers], [layer.values for layer in layers]


class DecodeBatch:
    """Requests of one length bucket, one a row, and their cache; rows without a request idle along."""

    def __init__(self, num_rows: int, length: int, layer_shapes: list[tuple[int, int]]) -> None:
        self.cache = RowCache(num_rows, length, layer_shapes)
        self.rows: list[Request | None] = [None] * num_rows

    @property
    def running(self) -> list[tuple[int, Request]]:
        """Return (row, request) of every occupied row."""
        return [(row, request) for row, request in enumerate(self.rows) if request is not None]

    def next_logits(
        self, model: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, num_used: int
    ) -> torch.Tensor:
        """Read one token a row ([num_rows] int64, at its position) and return the logits that follow, [num_rows, V].

        Rows from `num_used` on are idle; their logits mean nothing.
        """
        logits: torch.Tensor = model(
            input_ids=tokens[:, None],
            position_ids=positions[:, None],
            attention_mask=self.cache.set_positions(positions, num_used),
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        return logits[:, -1]

    def decode(self, model: torch.nn.Module, vocab_size: int) -> list[Request]:
        """Give every request (there is at least one) its next token; return those that are complete, their rows freed.

        Raises:
            RuntimeError: logits that are not finite.
        """
        running, rows = self.running, [request or _IDLE for request in self.rows]
        asked, positions = [request.sampling for request in rows], [request.position for request in rows]
        logits = self.next_logits(
            model, torch.tensor([request.next_input for request in rows]), torch.tensor(positions), running[-1][0] + 1
        )
        draws = [uniform(one.seed, position) for one, position in zip(asked, positions, strict=True)]
        chosen, logprobs = choose_tokens(
            logits[:, :vocab_size],
            temperature=torch.tensor([one.temperature for one in asked]),
            top_k=torch.tensor([one.top_k for one in asked]),
            top_p=torch.tensor([one.top_p for one in asked], dtype=torch.float64),
            uniform=torch.tensor(draws, dtype=torch.float64),
            forced=torch.tensor([request.forced_token for request in rows]),
        )
        if bool(logprobs.isnan().any()):
            raise RuntimeError(_NOT_FINITE)
        tokens, values = chosen.tolist(), logprobs.tolist()
        complete = [(row, request) for row, request in running if request.append(tokens[row], values[row])]
        for row, _ in complete:
            self.rows[row] = None
        return [request for _, request in complete]


class RolloutEngine:
    """Continuous batching over one model on the CPU; not thread-safe: one thread calls it.

    Args:
        model: a causal language model of `opd.rollout.cpu.model.build_model`.

    Raises:
        RuntimeError: torch computes with several threads here. A row's bits then depend on the thread, since the scratch memory of
            attention's second thread is aligned otherwise. Small models gain at most a sixth by threads.
    """

    def __init__(self, model: torch.nn.Module, config: EngineConfig) -> None:
        if torch.get_num_threads() != 1:
            raise RuntimeError(
                f"the rollout engine needs one thread, torch has {torch.get_num_threads()}: call torch.set_num_threads(1) "
                "in the thread that builds and steps it"
            )
        self.model = model
        self.config = config
        self.shapes, self._layer_shapes = Shapes.of(model), layer_shapes(model.config)
        self._waiting: deque[Request] = deque()
        self._batches: dict[int, list[DecodeBatch]] = {}

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
        config, prompt = self.config, [int(token) for token in prompt_ids]
        room = config.max_model_len - len(prompt)
        if not prompt or room < 1:
            raise ValueError(
                f"request {request_id}: a prompt of {len(prompt)} tokens; it needs at least one, and room for an answer "
                f"within max_model_len={config.max_model_len}: shorten the prompt or raise max_model_len"
            )
        outside = next((token for token in prompt if not 0 <= token < config.vocab_size), None)
        if outside is not None:
            raise ValueError(f"request {request_id}: prompt token {outside} is outside [0, {config.vocab_size})")
        sampling = SamplingParams.of(
            sampling_params, max_tokens=config.response_length, room=room, eos_token_ids=config.eos_token_ids
        )
        reply = script(prompt) if script is not None else None
        request = Request(request_id=request_id, prompt_ids=prompt, sampling=sampling, script=reply)
        self._waiting.append(request)
        return request

    @property
    def num_running(self) -> int:
        """Return the requests that have a row."""
        return sum(len(batch.running) for batch in self._all_batches())

    @property
    def num_unfinished(self) -> int:
        """Return the requests without a whole answer."""
        return len(self._waiting) + self.num_running

    def release_memory(self) -> None:
        """Free the key-value memory of batches without a request."""
        for length in list(self._batches):
            self._batches[length] = [batch for batch in self._batches[length] if batch.running]

    @torch.inference_mode()
    def check_rows(self) -> None:
        """Fill a decode batch and a prefill with equal rows and compare the rows' bits.

        Raises:
            RuntimeError: a row's bits depend on its place, or the weights are not finite.
        """
        batch = DecodeBatch(self.shapes.num_rows, kv_bucket(1, self.shapes.min_kv_length), self._layer_shapes)
        for position in range(_NUM_CHECKS):
            positions = torch.full((self.shapes.num_rows,), position)
            tokens = positions * 7 % self.config.vocab_size
            logits = batch.next_logits(self.model, tokens, positions, self.shapes.num_rows)
            if not bool(logits.isfinite().all()):
                raise RuntimeError(_NOT_FINITE)
            _require_equal_rows(logits, f"a decode batch of {self.shapes.num_rows}")
        length = prompt_bucket(1)
        num_rows = self._num_prompt_rows(length)
        prompt = [index * 7 % self.config.vocab_size for index in range(length)]
        for keys in prefill(self.model, [prompt] * num_rows, num_rows, length)[0]:
            _require_equal_rows(keys, f"a prefill of {num_rows} x {length}")

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Admit waiting requests, then generate one token for every running one; return those that are complete."""
        self._admit()
        complete = []
        for batch in list(self._all_batches()):
            if batch.running:
                complete += batch.decode(self.model, self.config.vocab_size)
        self._move_grown_rows()
        return complete

    def _all_batches(self) -> Iterator[DecodeBatch]:
        for length in sorted(self._batches):
            yield from self._batches[length]

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
                filled = prefill(self.model, [request.prompt_ids[:-1] for request in group], num_rows, length)
                for source_row, request in enumerate(group):
                    batch, row = self._place(request)
                    batch.cache.fill_row(row, *filled, source_row, request.position)

    def _place(self, request: Request) -> tuple[DecodeBatch, int]:
        """Give the request a free row in a batch of its length, adding a batch if all are full."""
        length = kv_bucket(request.position + 1, self.shapes.min_kv_length)
        batches = self._batches.setdefault(length, [])
        batch = next((batch for batch in batches if None in batch.rows), None)
        if batch is None:
            batch = DecodeBatch(self.shapes.num_rows, length, self._layer_shapes)
            batches.append(batch)
        row = batch.rows.index(None)
        batch.rows[row] = request
        return batch, row

    def _move_grown_rows(self) -> None:
        """Move requests that filled their cache row to a batch of the next length."""
        for batch in list(self._all_batches()):
            for row, request in batch.running:
                if request.position >= batch.cache.length:
                    batch.rows[row] = None
                    target, target_row = self._place(request)
                    target.cache.fill_row(target_row, batch.cache.keys, batch.cache.values, row, request.position)

    def _num_prompt_rows(self, length: int) -> int:
        """Return the rows of a prefill of that length: about the budget, and a multiple of `ROW_UNIT` tokens."""
        unit = ROW_UNIT // math.gcd(ROW_UNIT, length)
        return max(unit, self.shapes.prefill_tokens // length // unit * unit)


def _require_equal_rows(rows: torch.Tensor, what: str) -> None:
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        raise RuntimeError(
            f"a row's place in {what} changes its bits on this machine, so answers would depend on their batch mates; "
            "use another machine"
        )
