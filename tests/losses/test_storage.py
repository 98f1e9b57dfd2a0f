"""How the next call of the fused divergence stores its logits, from how the last ones had to."""

import pytest
import torch
from torch import nn

from opd.losses import DivergenceOutput
from opd.losses.fused import RETRY_AFTER, StorageMemory
from opd.worker.head import DistillationHead


def test_after_a_call_that_needed_fp32_the_next_ones_begin_with_it():
    memory = StorageMemory()
    begun = []
    for _ in range(2 * RETRY_AFTER):
        begun.append(memory.precision)
        memory.learn("fp32")
    assert begun[0] == begun[RETRY_AFTER] == "fp16"
    assert begun.count("fp16") == 2


@pytest.mark.parametrize("used", ["fp16", "float32"])
def test_once_fp16_suffices_it_is_kept(used):
    memory = StorageMemory()
    for _ in range(RETRY_AFTER):
        memory.learn("fp32")
    assert memory.precision == "fp16"
    memory.learn(used)
    assert memory.precision == "fp16"


def test_a_plain_call_between_fused_ones_teaches_nothing():
    memory = StorageMemory()
    memory.learn("fp32")
    memory.learn("float32")
    assert memory.precision == "fp32"


class Recorder:
    """A task that notes how it is told to begin, and always needs fp32."""

    positions = torch.arange(3)

    def __init__(self):
        self.begun = []

    def divergence(self, hidden, weight, precision):
        self.begun.append(precision)
        zeros = hidden.new_zeros(len(hidden))
        return DivergenceOutput(zeros.sum(), zeros, zeros, zeros, None, None, zeros.bool(), "fp32", 0.0)


def test_a_student_s_head_remembers_over_micro_batches_and_each_head_for_itself():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lm_head = nn.Linear(4, 5, bias=False)

        def get_output_embeddings(self):
            return self.lm_head

    heads, tasks = [DistillationHead.replace(Model()) for _ in range(2)], [Recorder(), Recorder()]
    for head, task, calls in zip(heads, tasks, (3, 1), strict=True):
        head.task = task
        for _ in range(calls):
            head(torch.zeros(3, 4))
    assert [task.begun for task in tasks] == [["fp16", "fp32", "fp32"], ["fp16"]]
