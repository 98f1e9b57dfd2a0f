"""A model that cannot be read ends the run by its key: for good where the hub said so, else for this attempt."""

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from omegaconf import OmegaConf

from opd.experiment import SpecError
from opd.inputs.model_files import load_tokenizer, reading


@pytest.mark.parametrize("answer", [RepositoryNotFoundError, GatedRepoError])
def test_a_model_that_the_hub_does_not_have_is_a_fault_of_the_spec(answer):
    request = httpx.Request("GET", "https://huggingface.co/api/models/owner/none")
    cause = answer("404 Client Error", response=httpx.Response(404, request=request))
    with pytest.raises(SpecError) as refused, reading("teacher.path", "owner/none"):
        raise OSError("owner/none is not a local folder and is not a valid model identifier") from cause
    [problem] = refused.value.problems
    assert (problem.path, problem.value) == ("teacher.path", "owner/none")
    assert "not a valid model identifier" in problem.rule


def test_a_tokenizer_that_a_missing_package_reads_is_refused_with_both_ways_out(tmp_path, monkeypatch):
    def load(path: str, **_: object) -> None:
        raise ValueError("`tiktoken` is required to read a `tiktoken` file. Install it with `pip install tiktoken`.")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", load)
    with pytest.raises(SpecError, match=r"install what wrote it .*, or save_pretrained the tokenizer elsewhere"):
        load_tokenizer(OmegaConf.create({"path": str(tmp_path), "trust_remote_code": False}))
