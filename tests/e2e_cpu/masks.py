"""What a scripted conversation must look like token by token: an account that shares nothing with the loop's."""

import re
from collections.abc import Sequence
from typing import Any

from opd.agent.trajectories import Trajectory


class Masks:
    """The rows of a rollout by their tokens.

    Args:
        tokenizer: the student's.
        rows: what the rollout gave (`tests.e2e_cpu.probe`).
    """

    def __init__(self, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> None:
        self._tokenizer = tokenizer
        self._found = {tuple(row["prompts"] + row["responses"]): row for row in rows}

    def check(
        self,
        prompt: Sequence[dict[str, str]],
        script: Sequence[str],
        item: Trajectory,
        offered: Sequence[dict[str, Any]],
    ) -> None:
        """The whole conversation, rendered and tokenised at once, is a row of the rollout, and its mask is 1 on the model's
        turns and nowhere else.

        Args:
            prompt: messages before the first turn. script: the turns, of which the last repeats. item: what was kept of it.
            offered: the tools' schemas.
        """
        messages = list(prompt)
        for k, calls in enumerate(item.calls):
            messages.append({"role": "assistant", "content": script[min(k, len(script) - 1)]})
            messages += [{"role": "tool", "content": record["reply"]} for record in calls]
        text = self._tokenizer.apply_chat_template(messages, tools=offered, tokenize=False).removesuffix("\n")
        ids, mask = [], []
        for i, piece in enumerate(re.split(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", text, flags=re.DOTALL)):
            tokens = self._tokenizer(piece, add_special_tokens=False)["input_ids"]
            ids, mask = ids + tokens, mask + [i % 2] * len(tokens)  # every second piece is a turn of the model
        assert ids == self._tokenizer(text, add_special_tokens=False)["input_ids"]
        row = self._found[tuple(ids)]
        assert row["response_mask"] == mask[len(row["prompts"]) :], prompt
        assert not any(mask[: len(row["prompts"])])
