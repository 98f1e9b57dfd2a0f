"""Which tokens and which problems are trained on (`opd.importance`)."""

from __future__ import annotations

from opd.config.defaults import DISTILS
from opd.config.rule import Rule

_RECOMPUTED = "(opd.importance.problems.recompute.every is not None or opd.importance.problems.recompute.at_stages)"

IMPORTANCE = (
    Rule(
        key="opd.importance.problems.pass_rates",
        when='opd.importance.problems.weights != "none" and opd.importance.problems.pass_rates is None',
        rule="weights {opd.importance.problems.weights} follow from the prompts' pass rates",
        fix="name the file: `pass_rates.parquet` of a run of kind passrate",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.importance.problems.pass_rates",
        when='opd.importance.problems.weights == "none" and opd.importance.problems.pass_rates is not None',
        rule="pass rates are read for weights only, and opd.importance.problems.weights is none",
        fix="set opd.importance.problems.weights: competence, or remove the key",
        kinds=DISTILS,
    ),
    *(
        Rule(
            key=f"opd.importance.problems.{key}",
            when=f'opd.importance.problems.weights != "competence" and opd.importance.problems.{key} != 1',
            rule="an exponent is given for weights: competence only; they are {opd.importance.problems.weights}",
            fix="set opd.importance.problems.weights: competence, or remove the key",
            kinds=DISTILS,
        )
        for key in ("alpha", "beta")
    ),
    Rule(
        key="opd.importance.problems.weights",
        when=f'{_RECOMPUTED} and opd.importance.problems.weights == "none"',
        rule="pass rates are measured again for weights only",
        fix="set opd.importance.problems.weights: competence, or remove opd.importance.problems.recompute",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.importance.problems.drop",
        when=f"{_RECOMPUTED} and opd.importance.problems.drop",
        rule="prompts of weight 0 that have left the data could not come back when pass rates are measured again",
        fix="set drop: false, or remove opd.importance.problems.recompute",
        kinds=DISTILS,
    ),
    *(
        Rule(
            key="opd.importance.problems.recompute.num_samples",
            when=f"{_RECOMPUTED} and opd.importance.problems.weights {weights} and opd.importance.problems.recompute.num_samples < {least}",
            rule="no weight could follow from pass rates of so few answers",
            fix=f"set opd.importance.problems.recompute.num_samples: 8, or at least {least}",
            kinds=DISTILS,
        )
        for weights, least in (('!= "moment_matched"', 2), ('== "moment_matched"', 3))
    ),
    Rule(
        key="opd.importance.problems.recompute.at_stages",
        when="opd.importance.problems.recompute.at_stages and len(opd.stages) < 2",
        rule="the run has no second stage",
        fix="give opd.stages, or use opd.importance.problems.recompute.every",
        kinds=DISTILS,
    ),
)
