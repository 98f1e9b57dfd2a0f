"""Checks of tokenizers: the ids that student and teacher share, and the student's chat template."""

import contextlib
import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from omegaconf import DictConfig
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from opd.agent.loop import Shared
from opd.agent.settings import AGENT_LOOP
from opd.data.chat_template import render
from opd.data.template_probe import check_template
from opd.data.turn_ends import end_tokens
from opd.errors import Unfit
from opd.experiment.algorithm import MESSAGES
from opd.inputs.model_files import reading

_QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]


def check_chat_template(config: DictConfig, tokenizer: Any, shapes: Collection[tuple[str, str]] = ()) -> None:
    """Have the student's template write what the run will ask of it: one question, or conversations with tools.

    A custom template of the config becomes the tokenizer's own. It must keep `shapes`: (role, key) of what the data say.
    Tools of the user's own (`agent.tool_config_path`) are described once they are made, with the rollout. The template is
    checked without them here, and with them there.

    Raises:
        UnfitTemplate: it fails, or cannot carry tool conversations exactly.
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    template = config.data.get("apply_chat_template_kwargs") or {}
    is_trained = config.data.get("prompt_key") == MESSAGES
    if rollout.agent.default_agent_loop == AGENT_LOOP:
        Shared(config, tokenizer, has_pool=False)
    else:
        render(tokenizer, _QUESTION, **template)
    check_template(tokenizer, shapes, is_trained=is_trained, template=template)


_NUM_SHOWN = 6
_OTHER_FAMILY = (
    "choose a teacher of the same family, or train on this one's answers, which are text to any tokenizer: kind sft with "
    "sft.teacher_answers"
)
# What decides how a text becomes ids, next to the tokens themselves; `trim_offsets` moves character offsets only.
_SECTIONS = ("normalizer", "pre_tokenizer", "model")
_NO_EFFECT = ("trim_offsets",)
# Ordinary text of every kind that a family's variants have split differently: digits, blanks, code, formulas, scripts.
PROBES = (
    "The quick brown fox doesn't jump over 1234567890 lazy dogs; they're 3.14159 times slower!",
    "  leading blanks,\ttabs\t\tand\n\n\nblank lines \r\n trailing   ",
    "def f(x):\n    return [i**2 for i in range(10) if i % 3 != 0]  # 0, 1, 4\n",
    r"\[\int_0^1 \frac{x^2}{1+\sqrt{x}}\,dx = \boxed{\tfrac{17}{42}}\]",
    '{"name": "search", "arguments": {"city": "Zürich", "n": 12}}',
    "你好，世界。１２３ 日本語のテキスト 한국어 Привет мир مرحبا नमस्ते ไทย",
    "naïve café e\u0301 ﬁ ½ ™ — “quotes” … 🙂👩\u200d🔬 \u00a0\u3000 I'LL WE'VE",
)


class SharedTokens(NamedTuple):
    """Ids below `shared` mean the same token to both models; tokens from there on belong to one of them only."""

    shared: int  # leading vocabulary entries that count in the divergence (heads may be padded beyond)
    student: int  # vocabulary entries of the student: from `shared` to here are tokens that the teacher lacks
    teacher: int  # vocabulary entries of the teacher, likewise

    def beyond(self) -> dict[str, int]:
        """Return the entries of each model that has tokens which the other lacks."""
        return {side: n for side, n in (("student", self.student), ("teacher", self.teacher)) if n > self.shared}


def shared_tokens(
    student: str,
    teacher: str,
    *,
    trust_student: bool = False,
    trust_teacher: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    key: str = "teacher",
) -> SharedTokens:
    """Return what two models' tokenizers share, if that is enough to distil one into the other.

    Equal tokenizers always share enough. Others may differ in tokens that the other lacks, after the ones that both have, as
    Qwen2.5 and Qwen3 do. Then every text without such a token must become the same ids.

    Args:
        tokenizer: the student's, if not the one of its model; its chat template must write none of the student's own tokens.
        key: the teacher's in the spec, for errors.

    Raises:
        Unfit: an id means different tokens, texts are cut differently, or the student needs a token that the teacher lacks.
            The error names the ids, tokens or settings.
    """
    paths = f"model.path={student} and {key}.path={teacher}"
    tokenizers, tokens, template = [], [], template_kwargs or {}
    of_student, of_teacher = ("model", student, trust_student, tokenizer), (key, teacher, trust_teacher, None)
    for of_model, path, trust, known in (of_student, of_teacher):
        with reading(f"{of_model}.path", path):
            found = known or AutoTokenizer.from_pretrained(path, trust_remote_code=trust)
            config = AutoConfig.from_pretrained(path, trust_remote_code=trust)
        tokenizers.append(found)
        # A token without a row in its model's embedding can neither be read nor written.
        num_rows = int(config.get_text_config().vocab_size)
        tokens.append({index: token for token, index in found.get_vocab().items() if index < num_rows})
    entries = [max(found) + 1 for found in tokens]
    shared = entries[0]
    if tokens[0] != tokens[1]:
        _refuse_other_meanings(paths, *tokens)
        if differences := _text_differences(*tokenizers):
            raise Unfit(
                f"{paths} cut ordinary text into different tokens ({'; '.join(differences)}): the teacher would read what "
                f"the student writes as it never writes itself; {_OTHER_FAMILY}"
            )
        shared = min(tokens[0].keys() ^ tokens[1].keys())
        _refuse_needed(paths, shared, tokenizers[0], template)
    _compare_turns(paths, tokenizers[0], tokenizers[1], template)
    return SharedTokens(shared, *entries)


def _compare_turns(
    paths: str, student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, template: Mapping[str, Any]
) -> None:
    """Refuse a teacher that ends its turns with no token at which the student's server stops; name a foreign template."""
    with contextlib.suppress(Exception):  # a template is a program of the model author: it may raise anything
        if render(student, _QUESTION, **template) != render(teacher, _QUESTION, **template):
            differs = "the teacher's own chat template writes a question differently from the student's"
            print(f"{paths}: {differs}", flush=True)
    tokens = [model.convert_ids_to_tokens([*end_tokens(model, **template)]) for model in (student, teacher)]
    ends = [set(map(str, found)) for found in tokens]
    if all(ends) and ends[0].isdisjoint(ends[1]):
        own, other = (", ".join(map(repr, sorted(one))) for one in ends)
        raise Unfit(
            f"{paths}: the student ends its turns with {own}, the teacher with {other}: the student would learn an end at "
            f"which its server does not stop. Add one of {other} to eos_token_id in the student's generation_config.json, or "
            "choose a teacher with the student's chat template"
        )


def _refuse_other_meanings(paths: str, student: dict[int, str], teacher: dict[int, str]) -> None:
    both = student.keys() & teacher.keys()
    if not (differing := sorted(index for index in both if student[index] != teacher[index])):
        return
    shown = ", ".join(f"{index} ({student[index]!r} and {teacher[index]!r})" for index in differing[:_NUM_SHOWN])
    more = ", ..." if len(differing) > _NUM_SHOWN else ""
    fix = _OTHER_FAMILY
    if len(differing) < len(both) // 100:  # a family whose ids were given other names
        fix += (
            ", or copy the teacher's tokenizer files into a copy of the student's folder, as R1's makers did with Qwen2.5 and "
            "Llama. The student then learns the tokens that are new to it"
        )
    raise Unfit(
        f"{paths} have different tokenizers ({len(student)} and {len(teacher)} tokens): {len(differing)} of the "
        f"{len(both)} ids that both have mean different tokens to them: {shown}{more}. The teacher reads the student's ids, "
        f"so each must mean one token to both; {fix}"
    )


def _text_differences(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> list[str]:
    """Return the settings by which the two turn a text into different ids; empty where nothing was found."""
    found = []
    backends = [getattr(tokenizer, "backend_tokenizer", None) for tokenizer in (student, teacher)]
    if None not in backends:
        settings = [_settings(json.loads(backend.to_str())) for backend in backends if backend is not None]
        found += [f"the tokenizers' {name} differs" for name in settings[0] if settings[0][name] != settings[1][name]]
    for text in PROBES:
        ids = [tokenizer.encode(text, add_special_tokens=False) for tokenizer in (student, teacher)]
        if ids[0] != ids[1]:
            found.append(f"{text[:40]!r} becomes {len(ids[0])} and {len(ids[1])} tokens")
            break
    return found


def _settings(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a tokenizer.json that decide how it cuts a text without added tokens."""
    added = {token["content"] for token in tokenizer["added_tokens"]}
    model = tokenizer["model"]
    vocab, merges = model.pop("vocab", {}), model.pop("merges", None)
    pieces = vocab.items() if isinstance(vocab, dict) else map(tuple, vocab)  # Unigram's are (piece, score)
    parts = {name: _without(tokenizer[name], _NO_EFFECT) for name in _SECTIONS}
    return parts | {"merges": merges, "vocabulary": {piece for piece in pieces if piece[0] not in added}}


def _without(node: Any, names: tuple[str, ...]) -> Any:
    """Return the settings without `names`, and with "", false and null alike, which different classes write."""
    if isinstance(node, dict):
        return {key: _without(value, names) for key, value in node.items() if key not in names}
    return [_without(item, names) for item in node] if isinstance(node, list) else node or None


def _refuse_needed(
    paths: str, shared: int, student: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any]
) -> None:
    """Raise Unfit for a student that cannot begin or end an answer with tokens that the teacher has."""
    ends = end_tokens(student, **template_kwargs)
    if ends and min(ends) >= shared:
        raise Unfit(
            f"{paths}: the student ends its answers with {student.convert_ids_to_tokens(ends[0])!r} ({ends[0]}). The teacher lacks this token, so the student "
            "cannot learn when to stop. Choose a teacher that has it, or another eos_token in the student's tokenizer"
        )
    if student.chat_template is None:
        return
    text = render(student, _QUESTION, **template_kwargs)
    if own := {index for index in student.encode(text, add_special_tokens=False) if index >= shared}:
        names = ", ".join(f"{student.convert_ids_to_tokens(index)!r} ({index})" for index in sorted(own))
        raise Unfit(
            f"{paths}: the student's chat template writes {names} into every prompt, and the teacher lacks it. "
            f"Choose a teacher that has it, or settings that leave it out (now {dict(template_kwargs)}; in a spec "
            "data.enable_thinking)"
        )
