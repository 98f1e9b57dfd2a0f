"""The instruction a prompt carries: stripping the one DAPO was published with, appending the one a run asks for."""

from typing import Literal, NamedTuple, get_args

Variant = Literal["boxed", "dapo", "none"]
"""boxed: answer in a box (reward math_reward); dapo: an `Answer:` line (reward math_dapo); none: the bare problem."""
VARIANTS: tuple[Variant, ...] = get_args(Variant)

BOXED_SENTENCE = r"Let's think step by step and output the final answer within \boxed{}."
# Character for character as in DAPO-Math-17k: it has to be found at both ends of every prompt.
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'


class Stripped(NamedTuple):
    """A problem without the DAPO instruction."""

    problem: str
    found: bool
    """Whether both halves of the instruction were there."""


def strip_dapo_instruction(text: str) -> Stripped:
    """The problem inside a DAPO prompt; halves of the instruction that are there go, one alone too."""
    found = text.startswith(DAPO_PREFIX) and text.endswith(DAPO_SUFFIX)
    return Stripped(text.removeprefix(DAPO_PREFIX).removesuffix(DAPO_SUFFIX).rstrip(), found)


def with_instruction(problem: str, variant: Variant) -> str:
    """The user message that asks `problem` in the way of `variant`."""
    problem = problem.rstrip()
    if variant == "boxed":
        return f"{problem}\n\n{BOXED_SENTENCE}"
    if variant == "dapo":
        return f"{DAPO_PREFIX}{problem}{DAPO_SUFFIX}"
    return problem
