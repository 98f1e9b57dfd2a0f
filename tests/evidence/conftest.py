"""Models for all tests of the studies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.evidence import models
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from opd.data.toy import STUDENT_DIR
from opd.data.toy.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """The toy's additions'."""
    return build_tokenizer()


@pytest.fixture(scope="module")
def student() -> Qwen3ForCausalLM:
    """The committed student of the toy's additions."""
    return Qwen3ForCausalLM.from_pretrained(STUDENT_DIR, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Teacher and start of seed 1 as they are before their lessons."""
    out = tmp_path_factory.mktemp("models")
    shapes = (
        ("teacher", models.TEACHER_RECIPE, 0),
        ("start-1", models.STUDENT_RECIPE, 1),
    )
    for name, recipe, seed in shapes:
        model = models.build_model(recipe, models.tokenizer(), seed=seed)
        save_file(model.state_dict(), models.path_of(out, name))
    return out
