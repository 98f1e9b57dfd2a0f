"""What is never printed."""

from __future__ import annotations

import pytest

from opdctl.redact import redact, redact_tree


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=sesame-open-1",
        'export AWS_SECRET_ACCESS_KEY="sesame-open-1"',
        "{'WANDB_API_KEY': 'sesame-open-1'}",
        "s3 at https://user:sesame-open-1@host:9000/bucket",
        "Authorization: Bearer sesame-open-1",
    ],
)
def test_a_secret_in_a_text_is_taken_out(text: str) -> None:
    assert "sesame" not in redact(text, environment={})
    assert "<redacted>" in redact(text, environment={})


def test_secret_values_of_the_environment_are_taken_out_wherever_they_occur() -> None:
    environment = {"RAY_AUTH_TOKEN": "open-sesame", "HOME": "/home/me", "SHORT_KEY": "1"}
    assert redact("got open-sesame at /home/me 1", environment=environment) == "got <redacted> at /home/me 1"


@pytest.mark.parametrize(
    "text", ["pad_token: 151643", "opd/num_tokens=511", "keys: a, b", "tokens/s 1545", "s3://bucket/a@b"]
)
def test_innocent_texts_stay_as_they_are(text: str) -> None:
    assert redact(text, environment={}) == text


def test_values_under_secret_names_go_whatever_they_look_like() -> None:
    tree = {"env": {"HF_TOKEN": "x y", "MODE": "fast"}, "list": [{"api-key": "abc"}], "seed": 1}
    assert redact_tree(tree) == {"env": {"HF_TOKEN": "<redacted>", "MODE": "fast"}, "list": [{"api-key": "<redacted>"}], "seed": 1}  # fmt: skip
