"""The teacher's answers to the training prompts, as an evaluation of it stored them, in the place of sampled answers."""

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from opd.data.turn_ends import last_end
from opd.evaluation.problems import Problem
from opd.experiment.errors import Problem as Fault
from opd.experiment.errors import SpecError
from opd.inputs.fetch import local_file
from opd.rollout.seeds import TRAIN, request_seed
from opd.trainer.dataset import PromptDataset

_COLUMNS = ["data_source", "problem_index", "sample_index", "ground_truth", "response", "truncated"]
_MORE = ["response_ids"]


class TeacherAnswers:
    """Answers to every prompt of a data set, which is found by its problem: (data source, index).

    Args:
        files: paths or store URLs of `generations.parquet`, or Parquet files with the same columns.
        dataset: the training prompts, with the student's tokenizer.
        seed: the run's.
        key: the spec's key of the files.

    Raises:
        SpecError: a prompt without an answer, answers to another question, or a file that cannot be read.
    """

    def __init__(self, files: Sequence[str], dataset: PromptDataset, *, seed: int, key: str) -> None:
        self._tokenizer, self._seed = dataset.tokenizer, seed
        found: dict[Problem, dict[tuple[int, int], dict[str, Any]]] = {}
        for number, file in enumerate(files):
            for row in _rows(file, key):
                problem = Problem(row["data_source"], row["problem_index"])
                found.setdefault(problem, {})[number, row["sample_index"]] = row
        names = dataset.name_problems()
        problems = [names[place] for place in dataset.places]
        truths = [str((reward or {}).get("ground_truth", "")) for reward in dataset.dataframe["reward_model"]]
        missing = [problem for problem in problems if problem not in found]
        wrong = [
            problem
            for problem, truth in zip(problems, truths, strict=True)
            if any(row["ground_truth"] != truth for row in found.get(problem, {}).values())
        ]
        for faulty, rule in ((missing, "have no answer in"), (wrong, "have another ground truth than in")):
            if faulty:
                shown = ", ".join(f"{source} {index}" for source, index in faulty[:5])
                raise _refused(
                    key, files, f"{len(faulty)} of {len(problems)} prompts {rule} these files, such as {shown}"
                )
        self._answers = [[row for _, row in sorted(found[problem].items())] for problem in problems]

    def of(self, index: int, *, step: int, num_samples: int) -> list[list[int]]:
        """Return token ids of answers to a prompt, each ended by the end-of-sequence token unless it was cut off.

        They follow one another from a place drawn by seed, step and prompt: all different where there are enough of them.

        Args:
            index: the prompt's row in the data set.
        """
        answers = self._answers[index]
        first = request_seed(self._seed, f"{TRAIN}/teacher", step, index, 0, 0)
        return [self._ids(answers[(first + sample) % len(answers)]) for sample in range(num_samples)]

    def _ids(self, answer: dict[str, Any]) -> list[int]:
        """Return the ids that the teacher gave, or the ids of its text where the student's tokenizer reads them otherwise."""
        given = answer.get("response_ids") or []
        if given and self._tokenizer.decode(given, skip_special_tokens=True) == answer["response"]:
            return list(given)
        ids = self._tokenizer(answer["response"], add_special_tokens=False)["input_ids"]
        return list(ids) if answer["truncated"] and ids else [*ids, last_end(self._tokenizer)]


def _rows(file: str, key: str) -> list[dict[str, Any]]:
    path = local_file(key, file)
    try:
        with pq.ParquetFile(path) as opened:
            columns = [*_COLUMNS, *(name for name in _MORE if name in opened.schema_arrow.names)]
        rows: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
        return rows
    except (OSError, ValueError, KeyError) as error:  # pyarrow's errors are of these kinds
        raise _refused(key, [file], f"the file cannot be read: {' '.join(str(error).split())}") from error


def _refused(key: str, files: Sequence[str], rule: str) -> SpecError:
    fix = "give eval/generations.parquet of a `kind: eval` run of the teacher whose data.val are the files of these prompts"
    return SpecError([Fault(path=key, value=list(files), rule=rule, fix=fix)])
