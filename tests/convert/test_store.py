"""Checkpoints and targets in an object store: a real S3 server over HTTP."""

from pathlib import Path

import pytest
import torch
from tests.convert.checkpoints import STEP, Case, full_weights

# The same server that the run directory is tested on.
from tests.runs.s3.conftest import fresh_filesystem, proxy, s3_environment, s3_server, s3_url  # noqa: F401
from transformers import AutoModelForCausalLM

from opd.convert.errors import BadRequest
from opd.convert.pipeline import convert_checkpoint
from opd.experiment.algorithm import Convert
from opd.store.remote import open_store

# The first test may have to build the server.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CASE = Case(tied=False, dtype="float32", world_size=2)


@pytest.fixture
def stored(sealed, s3_url) -> str:  # noqa: F811
    """URL of a sealed checkpoint whose local copy is gone."""
    step_dir: Path = sealed(CASE, remote_url=f"{s3_url}/my-run")
    for path in sorted(step_dir.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    return f"{s3_url}/my-run/checkpoints/global_step_{STEP}"


def test_a_checkpoint_in_the_store_is_verified_on_the_way_and_converted_here(saved, stored, tmp_path):
    _, record = convert_checkpoint(
        Convert(checkpoint=f"{stored}/actor/", target=str(tmp_path / "out"), dtype="checkpoint")
    )
    assert (record["run_id"], record["step"], record["checkpoint"]) == ("my-run", STEP, stored)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model.lm_head.weight, full_weights(saved, CASE)["lm_head.weight"])
    assert [path.name for path in tmp_path.glob(".*")] == [], "the download is gone"
    assert [path.name for path in (tmp_path / "out").glob(".*")] == []


def test_a_prefix_with_something_else_in_it_is_left_alone(stored, s3_url):  # noqa: F811
    open_store(f"{s3_url}/mine").put("notes.txt", b"precious")
    with pytest.raises(BadRequest, match="is no earlier conversion"):
        convert_checkpoint(Convert(checkpoint=stored, target=f"{s3_url}/mine", dtype="checkpoint"))
