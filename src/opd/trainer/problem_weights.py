"""Weights of the training prompts by the pass rates of a file."""

from collections.abc import Mapping

import torch
from torch import Tensor

from opd.evaluation.pass_rates import WEIGHTS_KEY, PassRate, read_pass_rates, weights_bytes
from opd.experiment.algorithm import ProblemImportance
from opd.experiment.errors import Problem, SpecError
from opd.inputs.fetch import local_file
from opd.runs.run import Run
from opd.trainer.dataset import PromptDataset
from opd.weights.problems import weights_of_problems

_NUM_SHOWN = 5


def prompt_weights(dataset: PromptDataset, problems: ProblemImportance, run: Run | None = None) -> Tensor:
    """Return [P] float32, the weights of a run's training prompts, with a mean of 1 over all of them.

    With `problems.drop` the rows of weight 0 leave the data set; the others keep their weights, whose mean is then above 1.

    Args:
        run: keeps the weights. None means that nothing keeps them.

    Raises:
        SpecError: the file of pass rates cannot be read, lacks prompts, or gives none a weight.
        FetchError, StoreError: a file in a store cannot be fetched.
    """
    ids, key, path = dataset.prompt_ids(), "opd.importance.problems.pass_rates", str(problems.pass_rates)
    local = local_file(key, path)
    try:
        rates = _of_rows(read_pass_rates(local), ids)
        shares = torch.tensor([rate.pass_rate for rate in rates], dtype=torch.float64)
        weights = weights_of_problems(shares, problems, num_samples=min(rate.k for rate in rates))
    except ValueError as error:
        fix = "measure the prompts of data.train by a run of kind passrate, with this run's data.max_prompt_length"
        raise SpecError([Problem(path=key, value=path, rule=str(error), fix=fix)]) from error
    if run is not None:
        run.keep({WEIGHTS_KEY: weights_bytes(rates, weights.tolist())})
    if problems.drop:
        kept = weights.nonzero().flatten()
        weights = weights[kept]
        dataset.keep(kept.tolist(), "have weight 0 by opd.importance.problems")
    print(
        f"opd.importance.problems: weights {problems.weights}, {len(weights)} of {len(ids)} training "
        f"prompts kept, the largest weighs {weights.max():.3g}",
        flush=True,
    )
    return weights.float()


def _of_rows(by_prompt: Mapping[str, PassRate], ids: list[str]) -> list[PassRate]:
    """Return the pass rate of each row, by the ids of the rows."""
    missing = [row for row, name in enumerate(ids, start=1) if name not in by_prompt]
    if missing:
        shown = ", ".join(map(str, missing[:_NUM_SHOWN])) + (", ..." if len(missing) > _NUM_SHOWN else "")
        raise ValueError(
            f"{len(missing)} of {len(ids)} training prompts have no pass rate in it (rows {shown}, counted from 1; it has "
            f"{len(by_prompt)} prompts). A prompt is found by its messages and its ground truth"
        )
    return [by_prompt[name] for name in ids]
