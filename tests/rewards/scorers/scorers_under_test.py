"""Reward functions with verl's signature that behave as badly as real ones have been seen to."""

import os
import re
import time


def echo(data_source, solution_str, ground_truth, extra_info, bonus=0.0):
    """Shows what reached the function."""
    return {
        "score": bonus + float(solution_str == ground_truth),
        "pred": f"{data_source}|{extra_info['index']}|{extra_info['num_turns']}",
        "length": len(solution_str),
    }


def process_id(data_source, solution_str, ground_truth, extra_info):
    return {"score": 1.0, "pred": str(os.getpid())}


def sleeps(data_source, solution_str, ground_truth, extra_info):
    """Writes its process id to the path in `ground_truth`, then never ends."""
    with open(ground_truth, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(3600)


def regex_hang(data_source, solution_str, ground_truth, extra_info):
    """Catastrophic backtracking: hours inside C, holding the interpreter's lock."""
    return float(re.match(r"(a+)+$", "a" * 60 + "b") is not None)


def raises(data_source, solution_str, ground_truth, extra_info):
    raise ZeroDivisionError("of all things")


def exits(data_source, solution_str, ground_truth, extra_info):
    os._exit(3)


def eats_memory(data_source, solution_str, ground_truth, extra_info):
    return float(len(bytearray(64 << 30)))


def not_a_number(data_source, solution_str, ground_truth, extra_info):
    return float("nan")


NOT_A_FUNCTION = 7


def plus_or_minus(data_source, solution_str, ground_truth, extra_info):
    """+1 or -1, without saying so; raises on an answer that is no number."""
    return 1.0 if int(solution_str) == int(ground_truth) else -1.0


def declares_its_worst(data_source, solution_str, ground_truth, extra_info):
    """Hangs, raises or ends its process, as the answer asks."""
    if solution_str == "hang":
        time.sleep(3600)
    if solution_str == "exit":
        os._exit(3)
    raise ValueError(solution_str)


declares_its_worst.worst_score = -2
