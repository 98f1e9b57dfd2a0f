"""A model's chat template: what it writes for messages, and the one error for a template that cannot be used."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from opd.data.messages import plain, with_text_arguments
from opd.experiment.errors import Problem, SpecError

_FIX = (
    "use a model whose template can, or give it another: chat_template.jinja next to the tokenizer's files, or verl's key "
    "actor_rollout_ref.model.custom_chat_template"
)
_TOOLS_FIX = "; or set agent.max_parallel_calls=1 where it takes one call a turn, or agent.enable_tools=false"


class UnfitTemplate(SpecError):
    """The model's chat template fails, or cannot carry what the run needs it for."""

    @classmethod
    def of(cls, tokenizer: Any, why: str, *, has_tools: bool) -> "UnfitTemplate":
        """Return the error for the template of `tokenizer` and the reason `why`."""
        fix = _FIX + (_TOOLS_FIX if has_tools else "")
        rule = f"its chat template cannot be used: {why}"
        return cls([Problem(path="model.path", value=tokenizer.name_or_path or None, rule=rule, fix=fix)])


RENDER_LIMIT_S = 20.0
"""Limit of one rendering: a template is a program, and may loop for hours."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise TimeoutError in the block at the limit; only in the main thread, and not within another timer."""
    is_free = threading.current_thread() is threading.main_thread() and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    if not is_free:
        yield
        return

    def end(number: int, frame: object) -> None:
        raise TimeoutError(f"it takes longer than {RENDER_LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, RENDER_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
        with _limited():
            text: str = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not is_finished, **kwargs
            )
        return text

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
