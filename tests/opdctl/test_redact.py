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
        "OPD_CONVERTER_API_KEY: sesame-open-1",
        "s3 at https://user:sesame-open-1@host:9000/bucket",
        "Authorization: Bearer sesame-open-1",
        "Authorization: Basic sesame-open-1",
        "SECRET=sesame-open-1",
        "PASSWORD: sesame-open-1",
        "TOKEN='sesame open 1'",
        '{"password": "sesame-open-1"}',
        '{"api_key": "sesame-open-1", "seed": 1}',
        '{"token": "sesame-open-1"}',
        '{\\"secretAccessKey\\": \\"sesame-open-1\\"}',
        "aws_secret_access_key = sesame-open-1",
        "aws_session_token=sesame-open-1",
        "client_secret: sesame-open-1",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=sesame-open-1==;EndpointSuffix=core.windows.net",
        "Endpoint=sb://a.example.net/;SharedAccessKeyName=root;SharedAccessKey=sesame-open-1=",
        "https://a.blob.core.windows.net/c?sv=2024-08-04&se=2026-01-01&sr=c&sp=rl&sig=sesame-open-1%3D",
        "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Security-Token=sesame-open-1&X-Amz-Signature=sesame",
        "redis://:sesame-open-1@host:6379/0",
        "postgres://me:sesame@open@host/db",
        "Server=db;User Id=me;Pwd=sesame-open-1;",
        "-----BEGIN RSA PRIVATE KEY-----\nsesame\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_in_a_text_is_taken_out(text: str) -> None:
    assert "sesame" not in redact(text, environment={})
    assert "<redacted>" in redact(text, environment={})


@pytest.mark.parametrize(
    "value",
    [
        "hf_" + "a" * 34, "AKIA" + "A" * 16, "ghp_" + "a" * 36, "github_pat_" + "a" * 22 + "_" + "b" * 59, "glpat-" + "a" * 20,
        "sk-proj-" + "a" * 40, "AIza" + "a" * 35, "xoxb-" + "1" * 12, "npm_" + "a" * 36, "dckr_pat_" + "a" * 27,
        "eyJhbGciOiJIUzI1NiJ9." + "a" * 20 + "." + "b" * 20,
    ],
)  # fmt: skip
def test_a_value_that_shows_what_it_is_is_taken_out_anywhere(value: str) -> None:
    assert redact(f"got {value}, tried again", environment={}) == "got <redacted>, tried again"


def test_what_a_terminal_would_obey_is_written_out() -> None:
    hostile = "a\x1b]0;owned\x07b\x9b2Jc\x7f\u202ed\ud800\x85\r"
    assert redact(hostile, environment={}) == "a\\x1b]0;owned\\x07b\\x9b2Jc\\x7f\\u202ed\ufffd\\x85\\r"
    assert redact("\x1b[1;31mred\x1b[0m\n\tnext", environment={}) == "red\n\tnext", "colours go, lines and tabs stay"


def test_secret_values_of_the_environment_are_taken_out_wherever_they_occur() -> None:
    environment = {"RAY_AUTH_TOKEN": "open-sesame", "HOME": "/home/me", "SHORT_KEY": "1"}
    assert redact("got open-sesame at /home/me 1", environment=environment) == "got <redacted> at /home/me 1"


@pytest.mark.parametrize(
    "text",
    [
        "pad_token: 151643",
        "opd/num_tokens=511",
        "keys: a, b",
        "tokens/s 1545",
        "s3://bucket/a@b",
        "eos_token='<|im_end|>'",
        "PWD=/home/me",
        "opdctl_key_error",
        "cluster.auth.secret: no such Secret",
        '{"key": 1}',
        "sort_key=lambda",
        "https://host/path?page=2",
        "a: b@c",
        "kubectl create secret docker-registry r --docker-password=...",
    ],
)
def test_innocent_texts_stay_as_they_are(text: str) -> None:
    assert redact(text, environment={}) == text


def test_values_under_secret_names_go_whatever_they_look_like() -> None:
    tree = {"env": {"HF_TOKEN": "x y", "MODE": "fast"}, "list": [{"api-key": "abc"}], "seed": 1}
    assert redact_tree(tree) == {"env": {"HF_TOKEN": "<redacted>", "MODE": "fast"}, "list": [{"api-key": "<redacted>"}], "seed": 1}  # fmt: skip
