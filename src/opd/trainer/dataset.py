"""The prompt data set: verl's, with a unique index per row and no prompt dropped or cut without a count."""

from __future__ import annotations

import logging
from dataclasses import replace

import datasets
import numpy as np
from verl.utils.dataset.rl_dataset import RLHFDataset

from opd.agent.settings import TOOL_SELECTION
from opd.agent.toolset import tool_schemas
from opd.config.errors import Problem as Fault
from opd.config.errors import SpecError, show
from opd.data.chat_template import UnfitTemplate, render
from opd.evaluation.problems import Problem, ProblemFile, name_problems
from opd.trainer.columns import aligned

logger = logging.getLogger(__name__)

# Below this many rows one process filters faster than it takes to start more.
_PARALLEL_FROM_ROWS = 20_000
_PLACE = "__place__"  # a row's place over all files, until it is known which rows stay


def _offered(schemas: list[dict], row: dict) -> list[dict] | None:
    """The descriptions of the tools that a row is offered, as the agent loop gives them to the template."""
    selection = (row.get("extra_info") or {}).get(TOOL_SELECTION)
    return [schema for schema in schemas if selection is None or schema["function"]["name"] in selection] or None


def _read(path: str) -> datasets.Dataset:
    """One prepared file; `opd.inputs` has looked at its columns."""
    kind = "parquet" if path.endswith(".parquet") else "json"
    return datasets.load_dataset(kind, data_files=path)["train"]


def _column(table: datasets.Dataset, name: str) -> list:
    """A column's values; None for each row of a file without it."""
    return list(table[name]) if name in table.column_names else [None] * len(table)


class PromptDataset(RLHFDataset):
    """verl's parquet data set; `index` is the row's position in the (filtered) data, unique over all files.

    `places` are the rows' positions over all files before any was left out, `dropped_places` those of overlong prompts;
    `name_problems` says which problems they are.

    `num_overlong_dropped` counts prompts above `data.max_prompt_length` after the chat template. With
    `data.filter_overlong_prompts=false` one such prompt is an error: verl's own left truncation would cut the system
    prompt and the instruction first, silently.
    """

    places: list[int]
    dropped_places: list[int]

    @property
    def num_overlong_dropped(self) -> int:
        return len(self.dropped_places)

    def name_problems(self) -> list[Problem]:
        """The problem of every row of every file, by its place."""
        urls = self.config.get("fetched_from") or {}
        return name_problems(
            [
                ProblemFile(
                    path=urls.get(path, path),
                    data_sources=[str(source) for source in table["data_source"]],
                    indices=[(info or {}).get("index") for info in _column(table, "extra_info")],
                )
                for path, table in zip(self.original_data_files, self._tables, strict=True)
            ]
        )

    def _read_files_and_tokenize(self):
        """All rows of all files, or verl's choice of `max_samples` of them, without the overlong prompts."""
        self._tables = [_read(path) for path in self.data_files]
        rows = datasets.concatenate_datasets(aligned(self._tables))
        rows = rows.add_column(_PLACE, list(range(len(rows))))
        if 0 < self.max_samples < len(rows):
            drawn = np.random.default_rng(self.seed).choice(len(rows), size=(self.max_samples,), replace=False)
            rows = rows.select(drawn.tolist() if self.shuffle else range(self.max_samples))
        kept = self.maybe_filter_out_long_prompts(rows)
        self.places = list(kept[_PLACE])
        self.dropped_places = sorted(set(rows[_PLACE]) - set(self.places))
        self.dataframe = kept.remove_columns(_PLACE)

    def maybe_filter_out_long_prompts(self, dataframe=None):
        toolset = self.config.get("toolset")
        if toolset is not None:
            self.tool_schemas = tool_schemas(toolset)
        kwargs = {
            k: v
            for k, v in self.apply_chat_template_kwargs.items()
            if k not in ("tokenize", "return_dict", "return_tensors")
        }
        limit, tokenizer, key, schemas = self.max_prompt_length, self.tokenizer, self.prompt_key, self.tool_schemas

        def fits(row) -> bool:
            offered = {} if schemas is None else {"tools": _offered(schemas, row)}
            try:
                text = render(tokenizer, row[key], **kwargs, **offered)
            except UnfitTemplate as error:
                raise UnfitTemplate([replace(p, source=f"prompt {show(row[key])}") for p in error.problems]) from error
            return len(tokenizer(text, add_special_tokens=False)["input_ids"]) <= limit

        workers = self.num_workers if len(dataframe) > _PARALLEL_FROM_ROWS else None
        kept = dataframe.filter(fits, num_proc=workers, desc=f"prompts of at most {limit} tokens")
        dropped = len(dataframe) - len(kept)
        if dropped and not self.filter_overlong_prompts:
            drop = "data.filter_overlong: true in a spec (verl's data.filter_overlong_prompts=true)"
            raise self._unfit(
                f"{dropped} of {len(dataframe)} prompts in {list(self.original_data_files)} are longer than "
                f"data.max_prompt_length={limit} tokens",
                f"raise the limit, or let them be dropped and counted with {drop}",
            )
        if not len(kept):
            raise self._unfit(
                f"no prompt of {list(self.original_data_files)} fits data.max_prompt_length={limit} tokens",
                "raise the limit",
            )
        if dropped:
            logger.warning("dropped %d of %d prompts longer than %d tokens", dropped, len(dataframe), limit)
        return kept

    def _unfit(self, rule: str, fix: str) -> SpecError:
        return SpecError([Fault(path="data.max_prompt_length", value=self.max_prompt_length, rule=rule, fix=fix)])

    def __getitem__(self, item):
        row = super().__getitem__(item)
        row["index"] = int(item)
        return row
