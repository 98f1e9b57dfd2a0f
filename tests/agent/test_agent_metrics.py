"""Counts of dialogues with tools against hand counts."""

from tests.agent.talk import END, Tools, call, talk

from opd.agent.metrics import AgentCounts

TWO_CALLS = call() + "\n" + call("teleport") + "\n" + call() + END


def dialogues():
    tools = Tools(answer=lambda *_: "静" * 300)
    yield talk([TWO_CALLS, "42" + END], tools, max_reply_tokens=100, max_parallel_calls=2)
    yield talk(["<tool_call>{</tool_call>" + END, call() + END, "42" + END])
    yield talk(["42" + END])
    yield talk([call() + END] * 3, max_assistant_turns=3)


def test_every_call_is_counted_under_its_tool_and_made_up_names_under_one():
    counts = AgentCounts()
    for dialogue in dialogues():
        counts.add(AgentCounts.of(dialogue))
    metrics = counts.metrics()
    # price: one run and one surplus in the first, one in the second, two in the last (the third call ends it)
    assert metrics["agent/tool/price/calls"] == 5
    assert metrics["agent/tool/price/errors"] == 1
    assert metrics["agent/tool/price/seconds_mean"] == 0.5, "over the four that were run"
    assert metrics["agent/tool/price/seconds_max"] == 0.5
    assert metrics["agent/tool/(unknown)/calls"] == metrics["agent/tool/(unknown)/errors"] == 1
    assert metrics["agent/tool/(unreadable)/calls"] == 1
    assert not any("teleport" in name for name in metrics), "what a model makes up must not name a metric"
    once = ("surplus_calls", "malformed_calls", "truncated_replies", "ended/max_assistant_turns")
    assert [metrics[f"agent/{name}"] for name in once] == [1, 1, 1, 1]
    assert metrics["agent/ended/answered"] == 3
    assert metrics["agent/ended/response_length"] == 0
