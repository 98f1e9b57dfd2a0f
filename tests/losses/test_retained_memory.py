"""What the loss keeps for the backward, and the largest tensor it ever makes: neither is of size tokens x vocabulary."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from opd.losses import DIVERGENCE_KINDS, chunked_divergence, divergence

VOCAB, DIM, CHUNK = 1000, 8, 16
FLOAT = 4
HEAD_BYTES = VOCAB * DIM * FLOAT


def inputs(num_tokens):
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(num_tokens, DIM, generator=generator, requires_grad=True)
    head = torch.randn(VOCAB, DIM, generator=generator, requires_grad=True)
    return (
        student,
        head,
        torch.randn(num_tokens, DIM, generator=generator),
        torch.randn(VOCAB, DIM, generator=generator),
    )


def ours(student, head, teacher, teacher_head, kind):
    return chunked_divergence(
        student,
        head,
        teacher,
        teacher_head,
        kind,
        token_weights=torch.ones(len(student)),
        beta=0.5,
        temperature=1.0,
        chunk_size=CHUNK,
    )


def chunked_under_autograd(student, head, teacher, teacher_head, kind):
    """The original's design: a loop over chunks that plain autograd records."""
    total = torch.zeros(())
    for start in range(0, len(student), CHUNK):
        chunk = slice(start, start + CHUNK)
        total = total + divergence(student[chunk] @ head.T, teacher[chunk] @ teacher_head.T, kind, beta=0.5).sum()
    return total


def saved_bytes(forward, num_tokens, kind):
    """Bytes in tensors saved for the backward, inputs left out, each storage once."""
    arguments = inputs(num_tokens)
    sizes: dict[int, int] = {}

    def pack(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward(*arguments, kind)
    for argument in arguments:
        sizes.pop(argument.untyped_storage().data_ptr(), None)
    del result
    return sum(sizes.values())


def retained_bytes(forward, num_tokens, kind):
    """Bytes allocated and not freed while the forward's result is alive, wherever they are kept."""
    arguments = inputs(num_tokens)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        result = forward(*arguments, kind)
    net = sum(event.self_cpu_memory_usage for event in recorded.events())
    del result
    return net


@pytest.mark.parametrize("num_tokens", [16, 64, 256])
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_saved_tensors_are_the_two_gradients_and_nothing_else(kind, num_tokens):
    assert saved_bytes(ours, num_tokens, kind) == num_tokens * DIM * FLOAT + HEAD_BYTES


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_the_originals_chunking_saves_eight_bytes_or_more_a_token_and_vocabulary_entry(kind):
    # Defect 2, to see that the measurement above would catch it: chunked, yet linear in tokens x vocabulary.
    growth = saved_bytes(chunked_under_autograd, 256, kind) - saved_bytes(chunked_under_autograd, 64, kind)
    assert growth >= 8 * (256 - 64) * VOCAB


@pytest.mark.slow
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_memory_kept_by_any_means_grows_with_hidden_states_and_per_token_outputs_only(kind):
    num_outputs = 3  # divergence and the two entropies, [T] each; and a byte that says whether they are finite
    growth = retained_bytes(ours, 256, kind) - retained_bytes(ours, 64, kind)
    assert growth <= (256 - 64) * ((DIM + num_outputs) * FLOAT + 1)


class LargestTensor(TorchDispatchMode):
    """Number of elements of the largest tensor that any operation returns."""

    num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.num_elements = max(self.num_elements, tensor.numel())
        return result


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_no_tensor_of_tokens_times_vocabulary_is_ever_made_in_forward_or_backward(kind):
    # Defect 3: the backward of each slice logits[a:b] makes a zero-filled [N, V], 256,000 elements here.
    num_tokens = 256
    arguments = inputs(num_tokens)
    with LargestTensor() as seen:
        ours(*arguments, kind).loss_sum.backward()
    assert seen.num_elements == max(CHUNK * VOCAB, VOCAB * DIM)


def test_slicing_full_logits_makes_one_in_each_slices_backward():
    # The original's form, to see that the measurement above would catch it.
    student, head, teacher, teacher_head = inputs(64)
    logits = student @ head.T
    teacher_logits = teacher @ teacher_head.T
    chunks = [slice(start, start + CHUNK) for start in range(0, 64, CHUNK)]
    total = sum(divergence(logits[chunk], teacher_logits[chunk], "reverse_kl").sum() for chunk in chunks)
    with LargestTensor() as seen:
        total.backward()
    assert seen.num_elements == 64 * VOCAB
