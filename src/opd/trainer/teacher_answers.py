"""The teacher's answers to the training prompts, as an evaluation of it stored them, in the place of sampled answers."""

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

from opd.data.turn_ends import last_end
from opd.evaluation.problems import Problem
from opd.experiment.errors import Problem as Fault
from opd.experiment.errors import SpecError
from opd.inputs.fetch import local_file
from opd.rollout.rows import IDS, LOG_PROBS
from opd.rollout.seeds import TRAIN, request_seed
from opd.trainer.dataset import PromptDataset

_COLUMNS = ["data_source", "problem_index", "sample_index", "ground_truth", "response", "truncated"]
_MORE = ["response_ids", "prompt"]
_EVENTS = "events"


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
        self._dataset, self._tokenizer = dataset, dataset.tokenizer
        self._seed, self._key, self._files = seed, key, files
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
        return [self._ids(self._drawn(index, step, sample)) for sample in range(num_samples)]

    def _drawn(self, index: int, step: int, sample: int) -> dict[str, Any]:
        first = request_seed(self._seed, f"{TRAIN}/teacher", step, index, 0, 0)
        return self._answers[index][(first + sample) % len(self._answers[index])]

    @property
    def have_events(self) -> bool:
        """True where each answer has its teacher's likeliest tokens."""
        return all(_EVENTS in answer for answers in self._answers for answer in answers)

    def check_events(self) -> None:
        """Refuse answers without the likeliest tokens, or as the student's tokenizer reads otherwise; note other prompts."""
        answers, rule = [answer for of_prompt in self._answers for answer in of_prompt], ""
        if not self.have_events:
            rule = "without a teacher they need its log-probabilities, which an evaluation with teacher.url writes"
        elif num := sum(self._ids(one) != one["response_ids"] for one in answers):
            rule = f"the student's tokenizer reads the ids of {num} of {len(answers)} answers as another text"
        elif len({len(self._flat(one, IDS)) // max(1, len(one["response_ids"])) for one in answers}) > 1:
            rule = "teacher.top_k of their evaluations must be the same"
        if rule:
            raise _refused(self._key, self._files, rule)
        encode, rows, key = self._dataset.encode, self._dataset.dataframe, self._dataset.prompt_key
        read = [self._tokenizer.decode(encode(row, row[key])) for row in rows]
        if num := sum(found[0]["prompt"] != text for found, text in zip(self._answers, read, strict=True)):
            print(f"note: the teacher has read {num} of {len(read)} prompts in another template", flush=True)

    def events(self, index: int, *, step: int, sample: int) -> dict[str, Tensor]:
        """Return the columns `IDS` and `LOG_PROBS` of an answer that `of` returns."""
        answer = self._drawn(index, step, sample)
        shape = len(answer["response_ids"]), -1
        return {name: torch.tensor(self._flat(answer, name)).view(shape) for name in (IDS, LOG_PROBS)}

    @staticmethod
    def _flat(answer: dict[str, Any], column: str) -> Any:
        table, place = answer[_EVENTS]
        return table[column][place].values.to_numpy()

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
        names = pq.read_schema(path).names
        columns = [*_COLUMNS, *(name for name in _MORE if name in names)]
        rows: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
        if IDS in names:
            table = pq.read_table(path, columns=[IDS, LOG_PROBS])
            rows = [row | {_EVENTS: (table, place)} for place, row in enumerate(rows)]
        return rows
    except (OSError, ValueError, KeyError) as error:  # pyarrow's errors are of these kinds
        raise _refused(key, [file], f"the file cannot be read: {' '.join(str(error).split())}") from error


def _refused(key: str, files: Sequence[str], rule: str) -> SpecError:
    fix = "give eval/generations.parquet of a `kind: eval` run of the teacher whose data.val are the files of these prompts"
    return SpecError([Fault(path=key, value=list(files), rule=rule, fix=fix)])
