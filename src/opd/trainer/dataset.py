"""The prompt data set: verl's, with a unique index per row and no prompt dropped or cut without a count."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import datasets
import numpy as np
from omegaconf import DictConfig
from verl.utils.dataset.rl_dataset import RLHFDataset

from opd.agent.environments import tool_schemas
from opd.agent.settings import TOOL_SELECTION
from opd.data.chat_template import UnfitTemplate, render
from opd.data.messages import part_of, plain
from opd.data.reading import How, joined, read_dataset, read_rows
from opd.evaluation.pass_rates import prompt_id
from opd.evaluation.problems import Problem, ProblemFile, name_problems
from opd.experiment.algorithm import MESSAGES
from opd.experiment.errors import Problem as Fault
from opd.experiment.errors import SpecError, show
from opd.experiment.sections import Split
from opd.inputs.data import MAX_ROWS, DataSet

logger = logging.getLogger(__name__)

# Below this many rows one process filters faster than it takes to start more.
_PARALLEL_FROM_ROWS = 20_000
PLACE = "__place__"  # a row's place over all files, until it is known which rows stay

Encode = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], list[int]]
"""(row of the data, messages) -> token ids of the messages as the row's prompt, with the header of the model's turn."""


def _encoded(
    row: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    *,
    tokenizer: Any,
    template_kwargs: Mapping[str, Any],
    schemas: list[dict[str, Any]] | None,
) -> list[int]:
    """Do what `Encode` says; at the top of the module, so that other processes can import it."""
    offered: dict[str, Any] = {} if schemas is None else {"tools": _offered(schemas, row)}
    try:
        text = render(tokenizer, messages, **template_kwargs, **offered)
    except UnfitTemplate as error:
        raise UnfitTemplate([replace(p, source=f"prompt {show(messages)}") for p in error.problems]) from error
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _offered(schemas: list[dict[str, Any]], row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the descriptions of the tools that a row is offered, as the agent loop gives them to the template."""
    selection = (row.get("extra_info") or {}).get(TOOL_SELECTION)
    return [schema for schema in schemas if selection is None or schema["function"]["name"] in selection] or None


def check_prompts(config: DictConfig, tokenizer: Any, data: Sequence[DataSet]) -> None:
    """Refuse data sets without a prompt that fits, before `PromptDataset` reads them; the first that fits ends the search.

    Fetched files and conversations are left to the run.
    """
    limit, toolset = int(config.data.max_prompt_length), config.data.get("toolset")
    kwargs, schemas = config.data.get("apply_chat_template_kwargs") or {}, tool_schemas(toolset) if toolset else None
    for one in data:
        if not one.files or one.how.wants == MESSAGES or any("://" in path for path in one.files):
            continue
        shortest = None
        for num, row in enumerate(row for path in one.files for row in read_rows(path, one.how)):
            ids = _encoded(row, row[one.how.wants], tokenizer=tokenizer, template_kwargs=kwargs, schemas=schemas)
            shortest = min(shortest or len(ids), len(ids))
            if shortest <= limit or num >= MAX_ROWS:
                break
        else:
            raise SpecError([_none_fits([one.name(path) for path in one.files], limit, shortest)])


def _none_fits(files: Sequence[str], limit: int, shortest: int | None) -> Fault:
    rule = f"no prompt of {', '.join(files)} fits data.max_prompt_length={limit} tokens; the shortest has {shortest}"
    return Fault(path="data.max_prompt_length", value=limit, rule=rule, fix=f"at least {shortest}, or shorter prompts")


def _column(table: datasets.Dataset, name: str) -> list[Any]:
    """Return a column's values; None for each row of a file without it."""
    return list(table[name]) if name in table.column_names else [None] * len(table)


def _prompt_ids(rows: datasets.Dataset, prompt_key: str) -> list[str]:
    truths = [(reward or {}).get("ground_truth") for reward in rows["reward_model"]]
    return [prompt_id(messages, truth) for messages, truth in zip(rows[prompt_key], truths, strict=True)]


class PromptDataset(RLHFDataset):
    """verl's parquet data set; `index` is the row's position in the (filtered) data, unique over all files.

    With `data.filter_overlong_prompts=false` a prompt above `data.max_prompt_length` after the chat template is an error.
    verl's own left truncation would cut the system prompt and the instruction first, silently.
    """

    dataframe: datasets.Dataset
    places: list[int]
    """The rows' positions over all files before any row was left out."""
    dropped_places: list[int]
    """Positions of overlong prompts."""
    num_overlong_dropped: int
    left_out: Counter[str]
    """Numbers of rows that `keep` left out, by the reason."""

    def name_problems(self) -> list[Problem]:
        """Return the problem of every row of every file, by its place; equal prompts of a data source are one problem."""
        urls = self.config.get("fetched_from") or {}
        names = name_problems(
            [
                ProblemFile(
                    path=urls.get(path, path),
                    data_sources=[str(source) for source in table["data_source"]],
                    indices=[(info or {}).get("index") for info in _column(table, "extra_info")],
                )
                for path, table in zip(self.original_data_files, self._tables, strict=True)
            ]
        )
        first: dict[tuple[str, str], Problem] = {}
        ids = [prompt for table in self._tables for prompt in _prompt_ids(table, self.prompt_key)]
        return [first.setdefault((name.data_source, prompt), name) for name, prompt in zip(names, ids, strict=True)]

    def check_fills(self, batch: int, split: Split) -> None:
        """Refuse fewer prompts than the `batch` that a step draws; the SpecError says why prompts have left the data set."""
        if (num := len(self)) >= batch:
            return
        rule = f"a step draws that many prompts, and {num} are left of the training data: " + ", ".join(
            [f"{self.num_overlong_dropped} are longer than data.max_prompt_length={self.max_prompt_length} tokens"]
            + ([] if split.part is None else [f"only part {split.part} of {split.of} is used (data.split)"])
            + [f"{number} {reason}" for reason, number in self.left_out.items() if number]
        )
        fix = f"at most {num}, a larger data.max_prompt_length, or more prompts"
        raise SpecError([Fault(path="data.train_batch_size", value=batch, rule=rule, fix=fix)])

    def prompt_ids(self) -> list[str]:
        """Return the name of each row in a file of pass rates."""
        return _prompt_ids(self.dataframe, self.prompt_key)

    def column(self, name: str) -> list[Any] | None:
        """Return the rows' values in a column. None means that the data have no such column."""
        return list(self.dataframe[name]) if name in self.dataframe.column_names else None

    def keep(self, rows: Sequence[int], reason: str) -> None:
        """Leave out all but these rows, which are then numbered anew; `reason` says why, as in "5 are too long"."""
        self.left_out[reason] += len(self.dataframe) - len(rows)
        self.dataframe = self.dataframe.select(rows)
        self.places = [self.places[row] for row in rows]

    def _read_files_and_tokenize(self) -> None:
        """Keep the rows of all files that are in `data.split`, or verl's choice of `max_samples` of them, without overlong prompts."""
        how = How(self.prompt_key, **(self.config.get("columns") or {}))
        self._tables = [read_dataset(path, how) for path in self.data_files]
        rows = joined(self._tables)
        rows = self._in_part(rows.add_column(PLACE, list(range(len(rows)))))
        if 0 < self.max_samples < len(rows):
            drawn = np.random.default_rng(self.seed).choice(len(rows), size=(self.max_samples,), replace=False)
            rows = rows.select(drawn.tolist() if self.shuffle else range(self.max_samples))
        kept = self.maybe_filter_out_long_prompts(rows)
        self.places = list(kept[PLACE])
        self.dropped_places = sorted(set(rows[PLACE]) - set(self.places))
        self.dataframe, self.left_out = kept.remove_columns(PLACE), Counter()

    def _in_part(self, rows: datasets.Dataset) -> datasets.Dataset:
        """Return the rows that `data.split` (a dump of `opd.experiment.sections.Split`) leaves, or raise SpecError if there is none."""
        split = Split(**(self.config.get("split") or {}))
        if split.part is None:
            return rows
        is_in = [part_of(messages, of=split.of, seed=split.seed) == split.part for messages in rows[self.prompt_key]]
        if not any(is_in):
            rule = f"none of {len(rows)} rows of {list(self.original_data_files)} is in part {split.part} of {split.of}"
            fix = "fewer parts (data.split.of), or more prompts"
            raise SpecError([Fault(path="data.split", value=split.model_dump(), rule=rule, fix=fix)])
        print(f"data.split: part {split.part} of {split.of}, {sum(is_in)} of {len(rows)} rows", flush=True)
        return rows.select([row for row, one in enumerate(is_in) if one])

    def maybe_filter_out_long_prompts(self, dataframe: datasets.Dataset) -> datasets.Dataset:
        toolset = self.config.get("toolset")
        if toolset is not None:
            self.tool_schemas = tool_schemas(toolset)
        encode, key = self.encode, self.prompt_key
        return self.without_overlong(dataframe, lambda row: len(encode(row, row[key])))

    @property
    def encode(self) -> Encode:
        """Return the function that makes the prompt of a row from messages."""
        return partial(
            _encoded, tokenizer=self.tokenizer, template_kwargs=self.template_kwargs, schemas=self.tool_schemas
        )

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Return the arguments of the chat template besides messages and tools."""
        ours = ("tokenize", "return_dict", "return_tensors")
        return {k: v for k, v in self.apply_chat_template_kwargs.items() if k not in ours}

    def processes_for(self, num_rows: int) -> int | None:
        """Return the number of processes that read so many rows. None means this process."""
        return self.num_workers if num_rows > _PARALLEL_FROM_ROWS else None

    def without_overlong(
        self, dataframe: datasets.Dataset, num_tokens: Callable[[Mapping[str, Any]], int]
    ) -> datasets.Dataset:
        """Return the rows whose prompt fits; `num_tokens` is the length of a row's prompt.

        Raises:
            SpecError: no row fits, or one does not and the run is not to drop any.
        """
        limit, files = self.max_prompt_length, list(self.original_data_files)

        def fits(row: Mapping[str, Any]) -> bool:
            return bool(num_tokens(row) <= limit)

        workers = self.processes_for(len(dataframe))
        kept = dataframe.filter(fits, num_proc=workers, desc=f"prompts of at most {limit} tokens")
        self.num_overlong_dropped = dropped = len(dataframe) - len(kept)
        if dropped and not self.filter_overlong_prompts:
            rule = f"{dropped} of {len(dataframe)} prompts in {files} are longer than data.max_prompt_length={limit} tokens"
            drop = "data.filter_overlong: true in a spec (verl's data.filter_overlong_prompts=true)"
            fix = f"raise the limit, or let them be dropped and counted with {drop}"
            raise SpecError([Fault(path="data.max_prompt_length", value=limit, rule=rule, fix=fix)])
        if not len(kept):
            raise SpecError([_none_fits(files, limit, min(map(num_tokens, dataframe), default=None))])
        if dropped:
            logger.warning("dropped %d of %d prompts longer than %d tokens", dropped, len(dataframe), limit)
        return kept

    def __getitem__(self, item: int) -> dict[str, Any]:
        row: dict[str, Any] = super().__getitem__(item)
        row["raw_prompt"], row["index"] = plain(row["raw_prompt"]), int(item)
        return row
