"""The language model's measurements, on the toy models: answers, accuracy and divergence by plain transformers."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from opd.data.toy import TEACHER_DIR
from opd.data.toy.task import split_problems
from opd.quickstart.adapter import merge
from opd.quickstart.language import Answer, Problem, accuracy, divergences, greedy_answers, samples


@pytest.fixture(scope="module")
def models():
    """A teacher and a student whose weights differ by noise."""
    student, teacher = (AutoModelForCausalLM.from_pretrained(TEACHER_DIR, dtype="float32") for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    for weight in student.parameters():
        weight.data += 0.02 * torch.randn(weight.shape, generator=generator)
    return student, teacher


def test_answers_are_those_of_unpadded_prompts_and_end_with_their_turn(models):
    tokenizer = AutoTokenizer.from_pretrained(TEACHER_DIR, padding_side="left")
    problems = [Problem(one.messages, one.answer, "toy") for one in split_problems().heldout[:6]]
    problems.append(Problem([{"role": "system", "content": "add"}, *problems[0].messages], "", "toy"))
    answers = greedy_answers(models[1], tokenizer, problems)
    alone = [greedy_answers(models[1], tokenizer, [problem])[0] for problem in problems]
    assert answers == alone
    assert [answer.text for answer in answers[:-1]] == [problem.truth for problem in problems[:-1]]
    assert all(answer.tokens[-1] == tokenizer.eos_token_id for answer in answers)


def test_the_divergence_is_the_mean_reverse_kl_over_an_answers_tokens(models):
    student, teacher = models
    answer = Answer(prompt=[1, 2, 3, 4], tokens=[5, 6, 7], text="")
    [found] = divergences(student, teacher, [answer])
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    with torch.no_grad():
        of_student, of_teacher = (model(input_ids=ids).logits[0, 3:-1].double().log_softmax(-1) for model in models)
    expected = (of_student.exp() * (of_student - of_teacher)).sum(-1).mean()
    assert found == pytest.approx(float(expected), rel=1e-4)
    assert divergences(teacher, teacher, [answer]) == pytest.approx([0], abs=1e-6)


def test_accuracy_counts_the_problems_of_its_source_and_samples_show_both_answers():
    problems = [Problem([{"content": "1+1?"}], "2", source) for source in ("gsm_seen", "gsm_seen", "gsm_new")]
    before, after = (
        [Answer([], [], text) for text in texts]
        for texts in ([r"\boxed{2}", "no", "no"], [r"so \boxed{2}", "no", r"\boxed{2}"])
    )
    assert accuracy(problems, before, "gsm_seen") == (0.5, pytest.approx(0.3536, abs=1e-4))
    assert accuracy(problems, after, "gsm_new").value == 1
    assert r"  after:  so \boxed{2}" in samples(problems, before, after)


def test_a_teacher_is_its_base_with_the_adapters_products(tmp_path):
    layer = "model.layers.0.self_attn.q_proj"
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(TEACHER_DIR, dtype="float32"),
        LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM"),
    )
    adapted.save_pretrained(tmp_path / "adapters")
    merge(TEACHER_DIR, tmp_path / "adapters", tmp_path / "out")
    base, found = (
        AutoModelForCausalLM.from_pretrained(folder, dtype="float32").get_submodule(layer).weight
        for folder in (TEACHER_DIR, tmp_path / "out")
    )
    lora = adapted.base_model.model.get_submodule(layer)
    expected = base + 2 * lora.lora_B.default.weight @ lora.lora_A.default.weight
    assert not torch.allclose(found, base, atol=1e-3)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-3)
