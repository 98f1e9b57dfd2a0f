"""`python -m tests.benchmarks.event_error STUDENT TEACHER`: how much of a divergence k + 1 events of a served teacher keep.

The student answers word problems, and both models read these answers. Each line has the mean divergence a token over the whole
vocabulary. Then follow the shares of it that the teacher's k likeliest tokens and one event for all others keep.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from opd.losses import HiddenTargets, Loss, Weights, head_loss

KS = (16, 64, 256)
KINDS = ("reverse_kl", "forward_kl", "jsd")
PROMPTS = (
    "A baker sells 12 loaves in the morning and twice as many in the afternoon. How many loaves are sold?",
    "Tom has 40 marbles, gives a quarter of them away and buys 7 more. How many marbles has he now?",
    "A train runs 80 km an hour for 3 hours and 60 km an hour for 2 hours. How far does it run?",
    "Four friends share 3 pizzas of 8 slices each equally. How many slices does each friend get?",
)
NUM_TOKENS = 160


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.event_error", description=__doc__)
    parser.add_argument("student")
    parser.add_argument("teacher")
    args = parser.parse_args()
    torch.manual_seed(1)
    student, teacher = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in vars(args).values())
    tokenizer = AutoTokenizer.from_pretrained(args.student)
    hidden: list[list[torch.Tensor]] = [[], []]
    tokens = []
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        asked = tokenizer(text, return_tensors="pt").input_ids
        ids = student.generate(asked, do_sample=True, max_new_tokens=NUM_TOKENS, pad_token_id=tokenizer.eos_token_id)
        tokens.append(ids[0, asked.shape[1] :])
        for states, model in zip(hidden, (student, teacher), strict=True):
            states.append(model.model(ids).last_hidden_state[0, asked.shape[1] - 1 : -1])
    states, ids = [torch.cat(parts) for parts in hidden], torch.cat(tokens)
    heads = [model.lm_head.weight for model in (student, teacher)]
    print(f"{len(ids)} tokens of {len(PROMPTS)} answers")
    print("| divergence | whole, nats | " + " | ".join(f"k = {k}" for k in KS) + " |")
    print("| --- | ---: |" + " ---: |" * len(KS))
    for kind in KINDS:
        found = []
        for k in (None, *KS):
            params = ({"beta": 0.5} if kind == "jsd" else {}) | ({"top_k": k} if k else {})
            weights = Weights(divergence=torch.full((len(ids),), 1 / len(ids)))
            targets = HiddenTargets(states[1], heads[1])
            found.append(float(head_loss(states[0], heads[0], ids, weights, Loss(kind, params), targets=targets).loss))
        print(f"| {kind} | {found[0]:.4f} | " + " | ".join(f"{part / found[0]:.2%}" for part in found[1:]) + " |")


if __name__ == "__main__":
    main()
