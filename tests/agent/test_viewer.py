"""The page of conversations: what it shows, and that what models and tools write cannot run."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from html import unescape

import pytest
from tests.agent.talk import END, TOKENIZER, Tools, call, talk

from opd.agent.trajectories import Segment, Trajectory, file_key, from_lines, to_lines
from opd.agent.viewer import load, render
from opd.store.remote import open_store
from opd.text import policy

HOSTILE = '</pre><script>document.title="PWNED"</script><img src=x onerror="document.title=\'PWNED\'">'


def trajectory(step: int = 1, text: str = HOSTILE, partition: str = "train", **changes) -> Trajectory:
    dialogue = talk([call(city=text) + END, text + END], Tools(answer=lambda *_: text), max_reply_tokens=2000).dialogue
    segments = [
        Segment(trained=True, text=dialogue.turns[0].text, num_tokens=dialogue.turns[0].num_tokens),
        Segment(trained=False, text=f"<tool_response>{text}</tool_response>", num_tokens=20),
        Segment(trained=True, text=dialogue.turns[1].text, num_tokens=dialogue.turns[1].num_tokens),
    ]
    fields = {
        "partition": partition, "step": step, "data_source": text, "data_index": 3, "sample": 0,
        "prompt": TOKENIZER.decode(dialogue.prompt_ids) + text, "num_prompt_tokens": 12, "segments": segments,
        "calls": [[asdict(item) for item in turn.calls] for turn in dialogue.turns], "ending": text, "score": 0.5,
        "breakdown": {"hard_budget": 1.0, "commonsense_open": 0.0, "hard": 0.5, "score": 0.5, "acc": 0.0, "pred": text},
        "ground_truth": text,
    }  # fmt: skip
    return Trajectory(**fields | changes)


def test_lines_give_the_conversations_back():
    items = [trajectory(), trajectory(step=2, text="静州")]
    assert from_lines(to_lines(items)) == items


def test_the_page_shows_who_wrote_what_and_escapes_all_of_it():
    html = render("a <run>", [trajectory()])
    assert "<script" not in html
    [rules] = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    assert unescape(rules) == policy()
    assert "default-src 'none'" in policy()
    assert "onerror=&#34;" in html
    assert "a &lt;run&gt;" in html
    assert html.count('class="part model"') == 3
    assert html.count('class="part tool"') == 2
    assert "commonsense_open 0.0 · hard 0.5 · hard_budget 1.0" in html


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / file_key("train", 1)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(ValueError, match=r"trajectories/train-000001.jsonl: line 1"):
        load(open_store(tmp_path))
