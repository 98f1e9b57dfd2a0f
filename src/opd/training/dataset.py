"""The prompt data set: verl's, with a unique index per row and no prompt dropped or cut without a count."""

from __future__ import annotations

import logging
from dataclasses import replace

from verl.utils.dataset.rl_dataset import RLHFDataset

from opd.agent.settings import TOOL_SELECTION
from opd.agent.tools.registry import tool_schemas
from opd.chat_template import UnfitTemplate, render
from opd.spec.errors import show

logger = logging.getLogger(__name__)

# Below this many rows one process filters faster than it takes to start more.
_PARALLEL_FROM_ROWS = 20_000


def _offered(schemas: list[dict], row: dict) -> list[dict] | None:
    """The descriptions of the tools that a row is offered, as the agent loop gives them to the template."""
    selection = (row.get("extra_info") or {}).get(TOOL_SELECTION)
    return [schema for schema in schemas if selection is None or schema["function"]["name"] in selection] or None


class PromptDataset(RLHFDataset):
    """verl's parquet data set; `index` is the row's position in the (filtered) data, unique over all files.

    `num_overlong_dropped` counts prompts above `data.max_prompt_length` after the chat template. With
    `data.filter_overlong_prompts=false` one such prompt is an error: verl's own left truncation would cut the system
    prompt and the instruction first, silently.
    """

    num_overlong_dropped: int = 0

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
            raise ValueError(
                f"{dropped} of {len(dataframe)} prompts in {list(self.original_data_files)} are longer than "
                f"data.max_prompt_length={limit} tokens: raise the limit, or let them be dropped and counted with "
                "data.filter_overlong: true in a spec (verl's data.filter_overlong_prompts=true)"
            )
        if not len(kept):
            raise ValueError(
                f"no prompt of {list(self.original_data_files)} fits data.max_prompt_length={limit} tokens"
            )
        self.num_overlong_dropped = dropped
        if dropped:
            logger.warning("dropped %d of %d prompts longer than %d tokens", dropped, len(dataframe), limit)
        return kept

    def __getitem__(self, item):
        row = super().__getitem__(item)
        row["index"] = int(item)
        return row
