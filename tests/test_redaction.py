"""Secrets: removed from texts, refused in specs, in time linear in the text."""

import time

import pytest

from opd.experiment.errors import secret_paths
from opd.redaction import MAX_CHARS, is_secret_name, is_secret_value, redact, redact_tree, without_secrets


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
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nsesame\n-----END PGP PRIVATE KEY BLOCK-----",
        "run --password sesame-open-1 --steps 3",
        "run --token=sesame-open-1",
        "git clone https://sesame-open-1@github.com/x",
        "Authorization: token sesame-open-1",
        "Set-Cookie: session=sesame-open-1",
        "DB_PASS=sesame-open-1",
        "PGPASSWORD=sesame-open-1",
        "password: |\n  sesame-open-1",
        "<password>sesame-open-1</password>",
        '{"auths": {"r.io": {"auth": "sesame-open-1"}}}',
        "redis://:se/sesame@host:1",
    ],
)
def test_a_secret_in_a_text_is_taken_out(text: str) -> None:
    assert "sesame" not in redact(text)
    assert "<redacted>" in redact(text)


@pytest.mark.parametrize(
    "value",
    [
        "hf_" + "a" * 34, "AKIA" + "A" * 16, "ghp_" + "a" * 36, "github_pat_" + "a" * 22 + "_" + "b" * 59, "glpat-" + "a" * 20,
        "sk-proj-" + "a" * 40, "AIza" + "a" * 35, "xoxb-" + "1" * 12, "npm_" + "a" * 36, "dckr_pat_" + "a" * 27,
        "eyJhbGciOiJIUzI1NiJ9." + "a" * 20 + "." + "b" * 20, "hf_abcdefgh", "sk_live_" + "a" * 24, "dapi" + "0a" * 16,
        "hvs." + "a" * 24,
    ],
)  # fmt: skip
def test_a_value_that_shows_what_it_is_is_taken_out_anywhere(value: str) -> None:
    assert redact(f"got {value}, tried again") == "got <redacted>, tried again"


def test_what_a_terminal_would_obey_is_written_out() -> None:
    hostile = "a\x1b]0;owned\x07b\x9b2Jc\x7f\u202ed\ud800\x85\r"
    assert redact(hostile) == "a\\x1b]0;owned\\x07b\\x9b2Jc\\x7f\\u202ed\ufffd\\x85\\r"
    assert redact("\x1b[1;31mred\x1b[0m\n\tnext") == "red\n\tnext", "colours go, lines and tabs stay"


def test_secret_values_of_the_environment_are_taken_out_wherever_they_occur(monkeypatch) -> None:
    for name, value in {"RAY_AUTH_TOKEN": "open-sesame", "HOME": "/home/me", "SHORT_KEY": "1"}.items():
        monkeypatch.setenv(name, value)
    assert redact("got open-sesame at /home/me 1") == "got <redacted> at /home/me 1"


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
    assert redact(text) == text


def test_values_under_secret_names_go_whatever_they_look_like() -> None:
    tree = {"env": {"HF_TOKEN": "x y", "MODE": "fast"}, "list": [{"api-key": "abc"}], "seed": 1}
    assert redact_tree(tree) == {"env": {"HF_TOKEN": "<redacted>", "MODE": "fast"}, "list": [{"api-key": "<redacted>"}], "seed": 1}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "hf_token", "MYPASSWORD", "PGPASSWD", "DB_PASS", "GITHUB_PAT", "GOOGLE_CREDENTIALS"]
)
def test_a_name_of_a_secret_is_known_in_any_case(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["PWD", "GIT_ASKPASS", "TOKENIZERS_PARALLELISM", "prompt_keys", "SSH_AUTH_SOCK"])
def test_other_names_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "value",
    [
        "hf_abcdefghijklmnopqrstuvwx",
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=c2VjcmV0c2VjcmV0==",
        '{"private_key": "-----BEGIN PRIVATE KEY-----MII"}',
        "http://user:pw@proxy:3128",
    ],
)
def test_a_value_shows_by_its_shape_that_it_is_secret(value: str) -> None:
    assert is_secret_value(value)
    assert without_secrets({"SOMETHING": value, "HOME": "/home/me"}) == {"HOME": "/home/me"}


@pytest.mark.parametrize(
    "unit", ["eyJ-", "eyJaaaaaaaaa-", "eyJaaaaaaaa.", "TOKEN ", "a.", "A_", "x://a:", 'KEY="\\', "-----BEGIN "]
)
def test_time_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    def seconds(num_chars: int) -> float:
        text = (unit * num_chars)[:num_chars]
        begin = time.process_time()
        redact(text)
        return time.process_time() - begin

    assert seconds(160_000) < 40 * max(seconds(16_000), 0.005)


def test_a_text_without_end_is_cut() -> None:
    shown = redact("a " * MAX_CHARS)
    assert len(shown) < MAX_CHARS + 100
    assert "characters left out" in shown


@pytest.mark.parametrize(
    "env",
    [
        {"MYPASSWORD": "hunter2"},
        {"hf_token": "hf_abcdefghijkl"},
        {"MY_VALUE": "hf_abcdefghijkl"},
        {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=x;AccountKey=c2VjcmV0c2VjcmV0=="},
        {"HTTPS_PROXY": "http://user:pw@proxy:3128"},
    ],
)
def test_a_spec_holds_no_secret(env: dict[str, str]) -> None:
    assert [*secret_paths({"env": env, "data": {"prompt_key": "prompt"}})] == [f"env.{name}" for name in env]
