"""A rank's end of vLLM comes without vLLM's engine, which verl's own import of it brings along, and waits for no answer that cannot come."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from tests.compat.vllm_start import no_vllm
no_vllm.install()
from verl.workers.rollout.base import get_rollout_class
{more}
adapter = get_rollout_class("vllm")
asked_for = list(no_vllm.ASKED)
import vllm
from verl.workers.rollout.vllm_rollout import vllm_rollout
print(json.dumps({{
    "is_verl_s": adapter is vllm_rollout.ServerAdapter,
    "sender": vllm_rollout.BucketedWeightSender.__module__,
    "sleep_level": vllm_rollout.VLLM_SLEEP_LEVEL,
    "asked_for": asked_for,
    "engine_afterwards": getattr(vllm.LLM, "__name__", None),
}}))
"""

pytestmark = pytest.mark.slow


def play(*command):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("worker", ["opd_worker", "policy_worker"])
def test_a_rank_has_verl_s_adapter_without_vllm_s_engine(worker):
    found = play("-c", PROGRAM.format(more=f"import opd.update.{worker}"))
    assert (found["is_verl_s"], found["sender"]) == (True, "opd.compat.vllm_ranks")
    assert found["sleep_level"] == 2
    assert not [name for name in found["asked_for"] if not name.startswith("vllm.distributed")]
    assert found["engine_afterwards"] == "LLM"  # who asks for it then gets it


def test_verl_still_imports_vllm_s_engine_for_it():
    found = play("-c", PROGRAM.format(more=""))
    assert found["is_verl_s"]
    assert found["sender"].startswith("verl.")
    assert found["sleep_level"] == 2
    assert "vllm:LLM" in found["asked_for"]


UNTAKEN = """
import asyncio, json
from tests.compat.vllm_start import no_vllm
no_vllm.install()
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from opd.compat import cpu, vllm_ranks
vllm_ranks.TAKE_S = 0.2
sender = vllm_ranks.bounded(BucketedWeightSender)("ipc://{folder}/socket", bucket_size_mb=1, use_shm=True)
try:
    asyncio.run(sender.async_send_weights(iter([])))
except RuntimeError as error:
    print(json.dumps(str(error)))
"""


def test_weights_that_no_server_takes_end_with_an_error(tmp_path):
    assert play("-c", UNTAKEN.format(folder=tmp_path)).startswith("vLLM has taken no part of the weights for 0 s")
