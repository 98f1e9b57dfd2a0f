"""Student and teacher must speak the same tokens: the check that refuses everything else by name."""

from __future__ import annotations

from transformers import AutoTokenizer

from opd.training.errors import Unfit


def shared_vocab_size(student: str, teacher: str, trust_remote_code: bool = False) -> int:
    """Number of leading vocabulary entries that are real tokens of both models (heads may be padded beyond).

    Args:
        student, teacher: folders or hub ids.

    Raises:
        Unfit: the tokenizers differ; the first differing entries are named.
    """
    tokenizers = [AutoTokenizer.from_pretrained(p, trust_remote_code=trust_remote_code) for p in (student, teacher)]
    vocabs = [tokenizer.get_vocab() for tokenizer in tokenizers]
    if vocabs[0] != vocabs[1]:
        differing = sorted(set(vocabs[0].items()) ^ set(vocabs[1].items()), key=lambda item: (item[1], item[0]))
        shown = ", ".join(f"{token!r}={index}" for token, index in differing[:6])
        raise Unfit(
            f"model.path={student} and teacher.path={teacher} have different tokenizers ({len(vocabs[0])} and "
            f"{len(vocabs[1])} tokens; they differ in {len(differing)} entries, first {shown}): full-vocabulary "
            "distillation compares distributions token by token and needs one vocabulary; choose a teacher of the same family"
        )
    return max(vocabs[0].values()) + 1
