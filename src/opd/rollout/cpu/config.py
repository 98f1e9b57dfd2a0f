"""Settings of the CPU rollout engine and the limits they are checked against."""

from dataclasses import dataclass

ROW_UNIT = 32
"""Every batch holds a multiple of this many tokens, so that where a row stands cannot change its bits.

torch computes exp, sin, silu and the like two vectors at a time, at most 32 floats, and what is left over at the end of a
tensor one by one, with other last bits. A multiple of 32 tokens leaves nothing over.
"""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the engine must know beside the model's weights; immutable for the life of a server."""

    vocab_size: int
    """Tokens the tokenizer knows (its length). Embedding rows beyond it are padding: never sampled, no probability, as in
    verl's vLLM server. verl's own actor counts them: its log-probabilities are lower by -log(1 - their mass)."""

    max_model_len: int
    """Longest sequence, prompt and answer together, in tokens."""

    prompt_length: int
    """Longest prompt of the data set, in tokens; enters only the default of `max_tokens`."""

    response_length: int
    """Longest answer in tokens when a request names no `max_tokens`."""

    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer (they are part of it)."""

    ignore_eos: bool = False
    """Default of a request's `ignore_eos`."""

    max_num_seqs: int = 1024
    """Requests that run at the same time; more wait in order of arrival."""

    num_slots: int = 2 * ROW_UNIT
    """Rows of a decode batch, a multiple of `ROW_UNIT`. Part of an answer's arithmetic: fix it per run."""

    def __post_init__(self) -> None:
        for key in (
            "vocab_size",
            "max_model_len",
            "prompt_length",
            "response_length",
            "max_num_seqs",
            "num_slots",
        ):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}={getattr(self, key)} must be at least 1")
        if self.num_slots % ROW_UNIT:
            raise ValueError(
                f"num_slots={self.num_slots} must be a multiple of {ROW_UNIT}: see opd.rollout.cpu.config.ROW_UNIT"
            )
        outside = [token for token in self.eos_token_ids if not 0 <= token < self.vocab_size]
        if outside:
            raise ValueError(
                f"eos_token_ids={outside} must be below vocab_size={self.vocab_size}: "
                "tokenizer and generation config disagree"
            )
