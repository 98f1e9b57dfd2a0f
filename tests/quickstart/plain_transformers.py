"""A reader of a model folder and a prepared file by transformers and pyarrow alone, without `opd`."""

from pathlib import Path

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BATCH_SIZE = 64
MAX_NEW_TOKENS = 8


def greedy_accuracy(folder: Path, prepared: Path, *, num_rows: int | None = None) -> float:
    """Share of the rows whose prompt, through the folder's own chat template, is answered greedily by exactly the truth."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    rows = pq.read_table(prepared).slice(0, num_rows).to_pylist()
    num_right = 0
    for start in range(0, len(rows), BATCH_SIZE):
        batch = rows[start : start + BATCH_SIZE]
        texts = [
            tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in batch
        ]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            outputs = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        answers = tokenizer.batch_decode(outputs[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        truths = [row["reward_model"]["ground_truth"] for row in batch]
        num_right += sum(answer.strip() == truth for answer, truth in zip(answers, truths, strict=True))
    return num_right / len(rows)
