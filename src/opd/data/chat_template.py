"""A model's chat template: what it writes for messages, and the one error for a template that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from opd.data.messages import plain, with_text_arguments
from opd.experiment.errors import Problem, SpecError

_FIX = (
    "use a model whose template can, or give it another: chat_template.jinja beside the tokenizer's files, or verl's key "
    "actor_rollout_ref.model.custom_chat_template"
)
_TOOLS_FIX = "; or set agent.max_parallel_calls=1 where it takes one call a turn, or agent.enable_tools=false"


class UnfitTemplate(SpecError):
    """The model's chat template fails, or cannot carry what the run needs it for."""

    @classmethod
    def of(cls, tokenizer: Any, why: str, *, has_tools: bool) -> UnfitTemplate:
        """Return the error for the template of `tokenizer` and the reason `why`."""
        fix = _FIX + (_TOOLS_FIX if has_tools else "")
        rule = f"its chat template cannot be used: {why}"
        return cls([Problem(path="model.path", value=tokenizer.name_or_path or None, rule=rule, fix=fix)])


def render(tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, is_finished: bool = False, **kwargs: Any) -> str:
    """Return the messages as the template writes them, with the header of the model's next turn.

    Args:
        is_finished: no turn follows, so there is no header.
        kwargs: what the template reads besides: `tools`, `enable_thinking` and the like.

    Raises:
        UnfitTemplate: there is no template, or it fails.
    """
    clean = plain(messages)

    def written(messages: list[dict[str, Any]]) -> str:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=not is_finished, **kwargs)
        )

    try:
        try:
            return written(clean)
        except TypeError:
            if not any(message.get("tool_calls") for message in clean):
                raise
            return written(with_text_arguments(clean))  # DeepSeek's templates take arguments as JSON text alone
    except Exception as error:  # a template is a program of the model author: it may raise anything
        # `raise_exception` in a template raises this very class with the author's own words.
        name = "" if type(error) is TemplateError else f"{type(error).__name__}: "
        raise UnfitTemplate.of(tokenizer, f"it fails: {name}{error}", has_tools=bool(kwargs.get("tools"))) from error
