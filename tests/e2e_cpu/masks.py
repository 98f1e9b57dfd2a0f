"""Tokens of a scripted conversation and of a step, by accounts that share nothing with the loop."""

import json
import re
from collections import Counter
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
        """Check that the conversation, rendered and tokenised at once, is a row whose mask is 1 on the model's turns alone.

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


def records(folder, kind):
    return [
        json.loads(line) for path in sorted(folder.glob(f"{kind}.*.jsonl")) for line in path.read_text().splitlines()
    ]


def said_by_the_rollout(rows):
    """(everything before a sampled token, place of the hidden state that predicts it, the token), counted."""
    said = Counter()
    for row in rows:
        asked = len(row["prompts"])
        for k, (token, trained) in enumerate(zip(row["responses"], row["response_mask"], strict=True)):
            if trained:  # the hidden state at asked + k - 1 has read everything before this token
                said[tuple(row["prompts"] + row["responses"][:k]), asked + k - 1, token] += 1
    return said


def read_by_the_student(batches):
    """The same of the student's forward."""
    read = Counter()
    for batch in batches:
        width = len(batch["input_ids"][0])
        tokens = [token for line in batch["input_ids"] for token in line]
        places = [place for line in batch["position_ids"] for place in line]
        assert all(weight == 1 for weight in batch["token_weights"])
        for position, token in zip(batch["positions"], batch["token_ids"], strict=True):
            start = position - places[position]
            assert start % width == 0
            read[tuple(tokens[start : position + 1]), places[position], token] += 1
    return read
