"""A request of the rollout engine while it runs, and the answer it ends with."""

from dataclasses import dataclass, field

from opd.rollout.cpu.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a request produced."""

    token_ids: list[int]
    """Answer tokens, an end token included."""
    logprobs: list[float]
    """Log-probability of each answer token, under temperature, top-k and top-p as sampled."""


@dataclass(kw_only=True, eq=False)
class Request:
    """One prompt being answered."""

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    script: list[int] | None = None
    """Tokens to answer with instead of sampled ones; log-probabilities are still the model's."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Index in the sequence of the token that the next decode step reads."""
        return len(self.prompt_ids) + len(self.token_ids) - 1

    @property
    def next_input(self) -> int:
        return self.token_ids[-1] if self.token_ids else self.prompt_ids[-1]

    @property
    def forced_token(self) -> int:
        """The script's next token, -1 without a script."""
        return -1 if self.script is None else self.script[len(self.token_ids)]

    def append(self, token: int, logprob: float) -> bool:
        """Take the token chosen for this request; returns whether the answer is complete."""
        if self.script is not None:
            done = len(self.token_ids) + 1 >= len(self.script)
        else:
            done = token in self.sampling.stop_token_ids
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        return done or len(self.token_ids) >= self.sampling.max_tokens

    def answer(self) -> Answer:
        return Answer(token_ids=self.token_ids, logprobs=self.logprobs)
