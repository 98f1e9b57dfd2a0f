"""Scripted answers: what the rollout replies in place of sampled tokens, for runs that exercise tools and masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ASSISTANT_HEADER = "<|im_start|>assistant"
"""Opens an assistant turn in the chat template; the prompt of turn k contains it k times (from 1)."""


@dataclass(frozen=True, kw_only=True)
class ScriptConfig:
    """Whose answers, and how a turn is told from the prompt (a request carries nothing else that tells it)."""

    replies: Mapping[str, Sequence[str | None]]
    """Text -> one reply per assistant turn, the last repeating; the first text that the prompt contains counts.
    None leaves a turn to the model."""
    tokenizer_path: str
    end: str = "<|im_end|>"
    """Appended to each reply."""


class Script:
    """Encodes the replies once and finds the one for a prompt."""

    def __init__(self, config: ScriptConfig) -> None:
        from tokenizers import Tokenizer

        empty = [key for key, replies in config.replies.items() if not replies]
        if empty or not config.replies:
            raise ValueError(f"script: needs at least one reply for each text; none for {empty or 'any'}")
        self._tokenizer = Tokenizer.from_file(str(Path(config.tokenizer_path) / "tokenizer.json"))
        self._replies = {
            key: [None if reply is None else self._encode(reply + config.end) for reply in replies]
            for key, replies in config.replies.items()
        }

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def reply(self, prompt_ids: Sequence[int]) -> list[int] | None:
        """Tokens to answer this prompt with, None to let the model answer.

        Raises:
            ValueError: no text of the script occurs in the prompt.
        """
        prompt: str = self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)
        for key, replies in self._replies.items():
            if key in prompt:
                turn = max(prompt.count(ASSISTANT_HEADER) - 1, 0)
                return replies[min(turn, len(replies) - 1)]
        raise ValueError(f"script: none of {', '.join(map(repr, self._replies))} occurs in the prompt {prompt[:200]!r}")
