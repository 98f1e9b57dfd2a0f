"""What the committed models are for: a student that learns from its own answers, and from nothing but a real teacher."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.evaluate import MAX_NEW_TOKENS, greedy_accuracy, prompt_token_ids
from opd.data.toy.models import TEACHER, build_model
from opd.data.toy.task import split_problems
from opd.losses import divergence

NUM_STEPS, BATCH_SIZE, LEARNING_RATE, NUM_WARMUP_STEPS = 30, 64, 3e-4, 5
TOKENIZER = AutoTokenizer.from_pretrained(STUDENT_DIR)


def distil(teacher: PreTrainedModel, seed: int) -> float:
    """Held-out accuracy after on-policy reverse KL in plain PyTorch: no trainer, one update a step."""
    torch.manual_seed(seed)
    student = AutoModelForCausalLM.from_pretrained(STUDENT_DIR, dtype=torch.float32)
    problems = random.Random(seed).sample(split_problems().train, NUM_STEPS * BATCH_SIZE)
    prompts = prompt_token_ids(TOKENIZER, problems)
    prompt_len, num_tokens = prompts.shape[1], len(TOKENIZER)
    optimizer = torch.optim.Adam(student.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / NUM_WARMUP_STEPS))
    for batch in prompts.split(BATCH_SIZE):
        rollouts = student.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=True,
            top_k=0,  # generate's own default is 50
        )
        trained_on = rollouts[:, prompt_len:] != TOKENIZER.pad_token_id
        with torch.no_grad():
            teacher_logits = teacher(input_ids=rollouts).logits[:, prompt_len - 1 : -1, :num_tokens]
        student_logits = student(input_ids=rollouts).logits[:, prompt_len - 1 : -1, :num_tokens]
        loss = divergence(student_logits[trained_on], teacher_logits[trained_on], "reverse_kl").mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return greedy_accuracy(student, TOKENIZER, split_problems().heldout)


@pytest.fixture(scope="module")
def start() -> float:
    student = AutoModelForCausalLM.from_pretrained(STUDENT_DIR)
    return greedy_accuracy(student, TOKENIZER, split_problems().heldout)


@pytest.mark.slow
def test_the_student_learns_from_the_teacher_in_1920_rollouts():
    teacher = AutoModelForCausalLM.from_pretrained(TEACHER_DIR, dtype=torch.float32)
    assert distil(teacher, seed=0) > 0.85


@pytest.mark.slow
def test_a_teacher_that_was_never_trained_teaches_nothing(start):
    # One-sided: reverse KL to a teacher that finds everything equally likely drives the student from all it was sure
    # of, so that its accuracy falls to zero. What must not happen is that it *rises*.
    teacher = build_model(TEACHER, TOKENIZER, seed=0)
    assert distil(teacher, seed=0) < start + 0.05


@pytest.mark.slow
def test_a_teacher_that_knows_no_more_leaves_the_student_where_it_was(start):
    # The student's own start with a little noise: another net, the same habits.
    teacher = AutoModelForCausalLM.from_pretrained(STUDENT_DIR, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter += 0.02 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    assert distil(teacher, seed=0) == pytest.approx(start, abs=0.05)
