"""Scripted turns for the CPU rollout: a file that `rollout.engine_kwargs.cpu.script` names."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

ASSISTANT_HEADER = "<|im_start|>assistant"
"""Opens an assistant turn in the chat template; the prompt of turn k contains it k times (from 1)."""
END_OF_TURN = "<|im_end|>"
"""Ends each scripted reply."""


class Script:
    """Replies instead of sampled answers.

    Args:
        replies: text -> one reply per assistant turn, the last repeating; the first text that the prompt contains counts.
            None leaves a turn to the model.
        tokenizer_path: folder of the model's tokenizer.
    """

    def __init__(self, replies: Mapping[str, Sequence[str | None]], tokenizer_path: str) -> None:
        self._tokenizer = Tokenizer.from_file(str(Path(tokenizer_path) / "tokenizer.json"))
        self._replies = {
            key: [None if reply is None else self._encode(reply + END_OF_TURN) for reply in of_key]
            for key, of_key in replies.items()
        }

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def reply(self, prompt_ids: Sequence[int]) -> list[int] | None:
        """Return the tokens to answer this prompt with. None means that the model answers.

        Raises:
            ValueError: no text of the script occurs in the prompt.
        """
        prompt: str = self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)
        for key, replies in self._replies.items():
            if key in prompt:
                turn = max(prompt.count(ASSISTANT_HEADER) - 1, 0)
                return replies[min(turn, len(replies) - 1)]
        raise ValueError(f"script: none of {', '.join(map(repr, self._replies))} occurs in the prompt {prompt[:200]!r}")


def override(folder: Path, replies: Mapping[str, Sequence[str | None]], tokenizer_path: Path) -> str:
    """Write the file of a script into a folder; return the override that has the CPU rollout answer by it."""
    code = f"from {__name__} import Script\n\nreply = Script({dict(replies)!r}, {str(tokenizer_path)!r}).reply\n"
    (folder / "script.py").write_text(code)
    return f"++actor_rollout_ref.rollout.engine_kwargs.cpu.script={folder}/script.py:reply"
