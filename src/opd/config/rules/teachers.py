"""One teacher or several, which rows they read, and prompts of their own."""

from __future__ import annotations

from collections.abc import Iterator

from opd.config.defaults import DISTILS
from opd.config.errors import Problem
from opd.config.kinds import DistillationSpec, RunSpec
from opd.config.rule import Rule
from opd.config.rules.terms import READS_BY_ACTOR

_TEACHER_KEYS = ("path", "revision", "prompt", "max_prompt_length", "refresh_every")


def _of_each_teacher(key: str, *, when: str, rule: str, fix: str) -> Iterator[Rule]:
    """A rule about one key of `teacher`, and of each of several `teachers`.

    Args:
        when: with the keys of the teacher in braces.
    """
    one = {name: f"teacher.{name}" for name in _TEACHER_KEYS}
    of = {name: f'teachers[item]["{name}"]' for name in _TEACHER_KEYS}
    alone = f"teacher is not None and {when.format(**one)}"
    yield Rule(key=one[key], when=alone, rule=rule, fix=fix, kinds=DISTILS)
    yield Rule(
        each="keys(teachers)",
        key=f"teachers.{{item}}.{key}",
        value=of[key],
        when=when.format(**of),
        rule=rule,
        fix=fix,
        kinds=DISTILS,
    )


TEACHERS = (
    Rule(
        key="teachers",
        value="keys(teachers)",
        when="teacher is not None and len(teachers) > 0",
        rule="all rows have the one teacher, or each has one of several",
        fix="remove teacher (TEACHER_MODEL_PATH sets it too), or give it a name under teachers too; or remove teachers and route",
        kinds=DISTILS,
    ),
    Rule(
        key="route.to",
        when="len(teachers) > 0 and len(route.to) == 0 and route.all is None",
        rule="there are several teachers, and nothing says which one reads a row",
        fix="give the name of a teacher for each value in the data's column {route.by}: to: {{VALUE: NAME}}, or one for every "
        "row: all: NAME",
        kinds=DISTILS,
    ),
    Rule(
        key="route.all",
        when="route.all is not None and len(route.to) > 0",
        rule="one reads every row, or each row has its own by route.to",
        fix="remove route.all or route.to",
        kinds=DISTILS,
    ),
    Rule(
        key="route.all",
        when="route.all is not None and route.all not in keys(teachers)",
        rule="there is no teacher of that name under teachers",
        fix="name one that is there, or add it",
        kinds=DISTILS,
    ),
    Rule(
        each="keys(route.to)",
        key="route.to.{item}",
        value="route.to[item]",
        when="route.to[item] not in keys(teachers)",
        rule="there is no teacher of that name under teachers",
        fix="name one that is there, or add it",
        kinds=DISTILS,
    ),
    Rule(
        key="actor.ulysses_sequence_parallel_size",
        when="len(teachers) > 0 and actor.ulysses_sequence_parallel_size > 1",
        rule="ranks that share a sequence read one teacher's hidden states for all their tokens, and there are several teachers",
        fix="set it to 1, or use one teacher",
        kinds=DISTILS,
    ),
    *_of_each_teacher(
        "refresh_every",
        when="{refresh_every} is not None and {refresh_every} > 0 and ({path} != model.path or {revision} != model.revision)",
        rule="a teacher that is refreshed gets the student's weights, so it is the student: model.path, and its revision where it has one",
        fix="give it the student's path and revision, or remove the key",
    ),
    *_of_each_teacher(
        "prompt",
        when='{prompt} is not None and not matches({prompt}, "(^|[^{{])([{{][{{])*[{{][^{{}}]")',
        rule="no name stands in braces in it, so the teacher would read the same text in the place of every row's question",
        fix="write {{prompt}}, which is the row's last user message, or {{COLUMN}} of data.train, or remove the key",
    ),
    *_of_each_teacher(
        "refresh_every",
        when="{refresh_every} is not None and {refresh_every} > 0 and model.lora is not None",
        rule="a LoRA student's weights are a frozen model and adapters, which a teacher does not have",
        fix="remove the key: the teacher stays the model that the student began as; or remove model.lora",
    ),
    *_of_each_teacher(
        "max_prompt_length",
        when="{max_prompt_length} is not None and {prompt} is None",
        rule="this teacher has no `prompt` of its own, and reads the student's prompts, whose length is data.max_prompt_length",
        fix="give it a prompt, or remove the key",
    ),
    *_of_each_teacher(
        "max_prompt_length",
        when=f"{READS_BY_ACTOR} and "
        "{max_prompt_length} is not None and actor.log_prob_max_token_len_per_gpu is not None and actor.use_dynamic_bsz "
        "and actor.log_prob_max_token_len_per_gpu * num_sharing < {max_prompt_length} + data.max_response_length",
        rule="the token budget actor.log_prob_max_token_len_per_gpu (times ulysses_sequence_parallel_size {num_sharing}) must hold "
        "the teacher's longest row, its own prompt and max_response_length",
        fix="raise actor.log_prob_max_token_len_per_gpu, or give a smaller max_prompt_length",
    ),
)


def unlike_offloads(spec: RunSpec) -> Iterator[Problem]:
    """The memory plan decides for all teachers together."""
    teachers = spec.named_teachers if isinstance(spec, DistillationSpec) else {}
    wishes = {key: teacher.offload for key, teacher in teachers.items()}
    for key, wish in wishes.items():
        if wish != (first := next(iter(wishes.values()))):
            yield Problem(
                path=f"{key}.offload",
                value=wish,
                rule=f"teachers wait in the same place, and that of {next(iter(wishes))} is {str(first).lower()}",
                fix="give all of them the same, or none",
            )
