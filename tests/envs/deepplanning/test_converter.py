"""Reports that the parser cannot read, converted by a model behind a real HTTP server: tries, refusals, time, cache, scores."""

import json
import socket
import ssl
import time
from functools import partial

import pyarrow.parquet as pq
import pytest
from tests.e2e.cluster.pki import Authority
from tests.envs.deepplanning.chat_server import (
    KEY,
    MODEL,
    completion,
    dripping,
    hung_up,
    raw,
    refusal,
    serving,
    silent,
    without_text,
)
from tests.envs.deepplanning.planned import World, as_report, write_worlds

from opd.agent.settings import CACHE_WAITS_S
from opd.data.prepare_agent_data import main as prepare
from opd.envs.deepplanning.__main__ import main as import_main
from opd.envs.deepplanning.scoring import endpoint as endpoint_module
from opd.envs.deepplanning.scoring.converter import Converter, report_of
from opd.envs.deepplanning.scoring.endpoint import API_KEY_VARIABLE, MAX_TRIES, ConversionFailed, Endpoint
from opd.envs.travel.plan import MAX_BLOCK_CHARS, PlanError
from opd.envs.travel.reward import compute_score
from opd.rewards import compute_score as compute_score_in_pool
from opd.rewards.protocol import WrongConfiguration

WORLD = World("en", 0)
PLAN = json.dumps(WORLD.plan())
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(endpoint_module, "FIRST_WAIT_S", 0.01)
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    data = write_worlds(tmp_path_factory.mktemp("planned"), [WORLD, World("en", 1)])
    assert import_main(["import", "--data-dir", str(data), "--out", str(data / "db")]) == 0
    prepare(["--data-dir", str(data), "--sources", "deepplanning", "--database-dir", str(data / "db")])
    return data / "db"


@pytest.fixture(scope="module")
def row(database):
    tables = [pq.read_table(path).to_pylist() for path in (database.parent / "agent_processed").glob("*.parquet")]
    return next(row for table in tables for row in table if row["extra_info"]["case_id"] == "en/0")


def unreadable(plan: str) -> str:
    """The report without the bars between time, type and what."""
    return plan.replace(" | ", " then ")


def converter(url: str, *, timeout_s: float = PATIENCE_S, cache=None, model: str = MODEL) -> Converter:
    return Converter(Endpoint(url, model, timeout_s), None if cache is None else str(cache))


def options(server, tmp_path, *, timeout_s: float = PATIENCE_S):
    return {
        "converter_url": server.url, "converter_model": MODEL, "converter_timeout_s": timeout_s,
        "converter_cache": str(tmp_path / "cache"),
    }  # fmt: skip


def score(row, text, database, **kwargs):
    return compute_score(
        row["data_source"], text, row["reward_model"]["ground_truth"], row["extra_info"], database_dir=str(database),
        **kwargs,
    )  # fmt: skip


# ---- who makes the plan ----------------------------------------------------------------------------------------------


def test_a_report_that_the_parser_reads_is_never_sent(row, database, tmp_path):
    with serving(completion(PLAN)) as server:
        found = score(row, as_report(WORLD, WORLD.plan()), database, **options(server, tmp_path))
    assert server.requests == []
    assert (found["acc"], found["plan_by_endpoint"]) == (1.0, 0.0)


def test_a_report_that_it_cannot_read_is_converted_and_scored_by_the_same_rules(row, database, tmp_path):
    text = unreadable(as_report(WORLD, WORLD.plan()))
    assert score(row, text, database)["delivery_rate"] == 0.0
    with serving(completion(f"<think>days, prices</think>\n```json\n{PLAN}\n```")) as server:
        found = score(row, text, database, **options(server, tmp_path))
    assert (found["acc"], found["delivery_rate"], found["plan_by_endpoint"]) == (1.0, 1.0, 1.0)
    ((_, body),) = server.requests
    assert (body["model"], body["temperature"]) == (MODEL, 0)
    assert body["messages"][1]["content"] == f"BEGIN\n{report_of(text, None)}\nEND"


def test_without_an_endpoint_no_number_says_who_made_the_plan(row, database):
    assert "plan_by_endpoint" not in score(row, as_report(WORLD, WORLD.plan()), database)


def test_an_answer_without_a_plan_block_is_converted_whole_and_none_or_a_longer_one_is_not_sent(
    row, database, tmp_path
):
    report = unreadable(as_report(WORLD, WORLD.plan())).replace("<plan>", "").replace("</plan>", "")
    with serving(completion(PLAN)) as server:
        told = row | {"extra_info": row["extra_info"] | {"final_text": report}}
        assert score(told, f"calls and replies {report}", database, **options(server, tmp_path))["acc"] == 1.0
        assert "calls and replies" not in server.requests[0][1]["messages"][1]["content"]
        for text in ("", "x" * (MAX_BLOCK_CHARS + 1)):
            told = row | {"extra_info": row["extra_info"] | {"final_text": text}}
            found = score(told, "", database, **options(server, tmp_path))
            assert (found["delivery_rate"], found["composite_score"], found["plan_by_endpoint"]) == (0.0, 0.0, 0.0)
    assert len(server.requests) == 1


def test_in_a_single_turn_the_whole_answer_is_converted_without_its_thoughts():
    assert report_of("<think>one | two</think>Day 1: rest", None) == "Day 1: rest"
    assert report_of("calls <plan>a</plan> replies <plan>b</plan>", "c") == "b"
    assert report_of("calls", "") == ""


# ---- what goes wrong -------------------------------------------------------------------------------------------------

PASSING = {
    "busy": refusal(429),
    "busy, with a wish": refusal(429, Retry_After="0"),
    "an error of the server": refusal(500),
    "a gateway without a server": refusal(503),
    "no answer": hung_up,
    "malformed JSON": raw(b'{"choices": [{"message"'),
    "JSON that is no completion": raw(b'{"choices": []}'),
    "a completion without text": raw(b'{"choices": [{"message": {"content": null}}]}'),
    "a text that is no JSON": completion("I would rather not."),
    "a plan that does not fit": completion('{"daily_plans": "none"}'),
    "a plan without a day": completion('{"daily_plans": []}'),
    "a plan that was cut": completion(PLAN, reason="length"),
    "an error without its text": without_text(500),
}


@pytest.mark.parametrize("failure", PASSING.values(), ids=PASSING)
def test_what_may_pass_is_tried_again(failure):
    with serving(failure, completion(PLAN)) as server:
        plan = converter(server.url).convert("report")
    assert len(server.requests) == 2
    assert len(plan.days) == WORLD.num_days


def test_a_server_that_asks_to_wait_is_waited_for():
    with serving(refusal(429, Retry_After="1"), completion(PLAN)) as server:
        started = time.monotonic()
        converter(server.url).convert("report")
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize(
    "failure", [refusal(500), refusal(429), hung_up, raw(b"<html>"), refusal(429, Retry_After="\N{SUPERSCRIPT TWO}")]
)
def test_tries_are_bounded_and_the_last_failure_is_told(failure):
    with serving(failure) as server, pytest.raises(ConversionFailed, match=r"127.0.0.1.*/v1/chat/completions: "):
        converter(server.url).convert("report")
    assert len(server.requests) == MAX_TRIES


@pytest.mark.parametrize("act", [silent, dripping], ids=["silent", "byte by byte"])
def test_a_slow_answer_ends_at_the_limit_and_the_key_to_raise_is_named(act):
    with serving(act) as server:
        started = time.monotonic()
        with pytest.raises(ConversionFailed, match=r"no whole answer in 0.5 s; raise reward.converter.timeout_s"):
            converter(server.url, timeout_s=0.5).convert("report")
        assert time.monotonic() - started < 60
    assert len(server.requests) <= 1  # a loaded machine may serve the connection after the caller has gone


@pytest.mark.slow
def test_a_slow_text_of_an_error_ends_at_the_limit_and_the_error_is_told():
    with serving(partial(dripping, status=500)) as server:
        started = time.monotonic()
        with pytest.raises(ConversionFailed, match="HTTP 500"):
            # Of these seconds the error's status needs a few milliseconds, on a busy machine more.
            converter(server.url, timeout_s=8.0).convert("report")
        assert time.monotonic() - started < 60


def test_a_refusal_without_its_text_is_still_one():
    with serving(without_text(401)) as server, pytest.raises(WrongConfiguration, match=f"HTTP 401.*{API_KEY_VARIABLE}"):
        converter(server.url).convert("report")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "url", ["http://[x", "http://127.0.0.1:port/v1", "http://127.0.0.1/v\N{LATIN SMALL LETTER E WITH ACUTE}"]
)
def test_an_address_that_cannot_be_asked_is_named(url):
    with pytest.raises(WrongConfiguration, match=r"reward.converter.url = "):
        converter(url).convert("report")


def test_a_certificate_that_cannot_be_verified_is_named_with_the_address(tmp_path):
    identity = Authority(tmp_path / "pki").issue("server", user="server", hosts=["IP:127.0.0.1"])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(identity.certificate, identity.key)
    with (
        serving(completion(PLAN), tls=tls) as server,
        pytest.raises(WrongConfiguration, match=r"reward.converter.url = https://127.*certificate verify failed"),
    ):
        converter(server.url).convert("report")
    assert server.requests == []


def test_no_server_at_all_is_a_failure_with_its_address():
    with serving(completion(PLAN)) as server:
        url = server.url
    with pytest.raises(ConversionFailed, match=f"{url}/chat/completions: .*refused"):
        converter(url).convert("report")


def test_a_question_that_the_server_refuses_is_not_asked_again():
    with serving(refusal(400)) as server, pytest.raises(ConversionFailed, match="HTTP 400"):
        converter(server.url).convert("report")
    assert len(server.requests) == 1


def test_a_missing_key_and_a_wrong_one_are_named_with_their_fix_and_never_shown(monkeypatch):
    with serving(completion(PLAN), key=KEY) as server:
        with pytest.raises(
            WrongConfiguration, match=rf"HTTP 401.*{API_KEY_VARIABLE} is not set: .*cluster.secrets.converter"
        ):
            converter(server.url).convert("report")
        monkeypatch.setenv(API_KEY_VARIABLE, "wrong-sesame-77")
        with pytest.raises(WrongConfiguration, match=f"HTTP 401.*{API_KEY_VARIABLE} is refused") as refused:
            converter(server.url).convert("report")
        assert "wrong-sesame-77" not in str(refused.value)
        assert len(server.requests) == 2
        monkeypatch.setenv(API_KEY_VARIABLE, KEY)
        assert converter(server.url).convert("report").days


def test_the_line_break_at_the_end_of_a_key_from_a_file_is_not_part_of_it(monkeypatch):
    with serving(completion(PLAN), key=KEY) as server:
        monkeypatch.setenv(API_KEY_VARIABLE, f"{KEY}\n")
        assert converter(server.url).convert("report").days
        monkeypatch.setenv(API_KEY_VARIABLE, "wrong-sesame-77\n")
        with pytest.raises(WrongConfiguration, match="HTTP 401") as refused:
            converter(server.url).convert("report")
        assert "wrong-sesame-77" not in str(refused.value)
        monkeypatch.setenv(API_KEY_VARIABLE, "\n")
        with pytest.raises(WrongConfiguration, match=f"{API_KEY_VARIABLE} is not set"):
            converter(server.url).convert("report")


@pytest.mark.parametrize("key", ["sesame\n77", "sesame\N{GREEK SMALL LETTER PI}77", "sesame\x0177"])
def test_a_key_that_no_header_can_hold_is_named_and_never_shown(monkeypatch, key):
    monkeypatch.setenv(API_KEY_VARIABLE, key)
    with serving(completion(PLAN)) as server:
        with pytest.raises(
            WrongConfiguration, match=f"{API_KEY_VARIABLE} holds .*cluster.secrets.converter"
        ) as refused:
            converter(server.url).convert("report")
        assert server.requests == []
    assert "77" not in str(refused.value)


def test_a_wrong_address_and_a_wrong_model_are_named_with_their_fix():
    with serving(completion(PLAN)) as server:
        with pytest.raises(WrongConfiguration, match=r"HTTP 404.*no such path /v2/chat.*give the address"):
            converter(server.url.replace("v1", "v2")).convert("report")
        with pytest.raises(WrongConfiguration, match=r"HTTP 404.*reward.converter.model \(other\)"):
            converter(server.url, model="other").convert("report")
    assert len(server.requests) == 2


def test_the_key_does_not_follow_a_redirect(monkeypatch):
    monkeypatch.setenv(API_KEY_VARIABLE, KEY)
    with serving(completion(PLAN)) as other, serving(refusal(307, Location=f"{other.url}/chat/completions")) as server:
        with pytest.raises(WrongConfiguration, match="HTTP 307"):
            converter(server.url).convert("report")
        assert other.requests == []


# ---- what is paid for once -------------------------------------------------------------------------------------------


def test_a_conversion_is_paid_once_also_by_a_run_that_goes_on(tmp_path):
    with serving(completion(PLAN)) as server:
        first = converter(server.url, cache=tmp_path).convert("report")
        assert converter(server.url, cache=tmp_path).convert("report") == first
        assert len(server.requests) == 1
        converter(server.url, cache=tmp_path).convert("another report")
        assert len(server.requests) == 2


def test_what_is_no_plan_is_asked_a_few_times_and_kept_as_that(tmp_path):
    with serving(completion("no")) as server:
        for _ in range(2):
            with pytest.raises(PlanError, match="the converter's answer is no plan: the plan is not JSON"):
                converter(server.url, cache=tmp_path).convert("report")
    assert len(server.requests) == MAX_TRIES


def test_what_was_unfit_only_beside_other_faults_is_not_kept(tmp_path):
    with serving(refusal(500), *[completion("no")] * (MAX_TRIES - 1), completion(PLAN)) as server:
        with pytest.raises(ConversionFailed, match="HTTP 500"):
            converter(server.url, cache=tmp_path).convert("report")
        assert converter(server.url, cache=tmp_path).convert("report").days


@pytest.mark.parametrize("text", [PLAN[:99], None])
def test_an_answer_that_was_cut_is_a_failure_with_its_fix_and_not_kept(tmp_path, text):
    with serving(*[completion(text, reason="length")] * MAX_TRIES, completion(PLAN)) as server:
        with pytest.raises(ConversionFailed, match="cut at its model's limit; raise it"):
            converter(server.url, cache=tmp_path).convert("report")
        assert converter(server.url, cache=tmp_path).convert("report").days


def test_another_model_converts_anew(tmp_path):
    with serving(completion(PLAN)) as server:
        converter(server.url, cache=tmp_path).convert("report")
        with pytest.raises(WrongConfiguration):
            converter(server.url, cache=tmp_path, model="other").convert("report")
    assert len(server.requests) == 2


def test_a_failure_is_not_kept(tmp_path):
    with serving(*[refusal(500)] * MAX_TRIES, completion(PLAN)) as server:
        with pytest.raises(ConversionFailed):
            converter(server.url, cache=tmp_path).convert("report")
        assert converter(server.url, cache=tmp_path).convert("report").days


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"plan": {"daily_plans": 1}}', b'{"other": 1}'])
def test_a_kept_conversion_that_is_damaged_is_asked_for_again(tmp_path, damage):
    with serving(completion(PLAN)) as server:
        converter(server.url, cache=tmp_path).convert("report")
        (kept,) = tmp_path.glob("*.json")
        kept.write_bytes(damage)
        assert converter(server.url, cache=tmp_path).convert("report").days
    assert len(server.requests) == 2
    assert json.loads(kept.read_text())["plan"]["daily_plans"]


def test_a_cache_that_cannot_be_written_costs_no_score(tmp_path):
    (tmp_path / "file").touch()
    with serving(completion(PLAN)) as server:
        assert converter(server.url, cache=tmp_path / "file").convert("report").days


@pytest.mark.slow
def test_a_store_that_says_nothing_costs_no_score_and_no_more_than_its_time(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as store, serving(completion(PLAN)) as server:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.getsockname()[1]}", "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        started = time.monotonic()
        assert converter(server.url, cache="s3://silent/conversions").convert("report").days
        assert time.monotonic() - started < CACHE_WAITS_S


# ---- through the scorer pool -----------------------------------------------------------------------------------------


def in_pool(row, database, **kwargs):
    return compute_score_in_pool(
        row["data_source"], unreadable(as_report(WORLD, WORLD.plan())), row["reward_model"]["ground_truth"],
        row["extra_info"], function="opd.agent.reward:compute_score", timeout_s=PATIENCE_S, num_workers=1,
        database_dir=str(database), **kwargs,
    )  # fmt: skip


@pytest.mark.slow
def test_a_failed_conversion_costs_its_answer_alone_and_is_counted(row, database, tmp_path):
    with serving(refusal(400), completion(PLAN)) as server:
        failed = in_pool(row, database, **options(server, tmp_path))
        assert (failed["failed"], failed["score"]) == (1, 0.0)
        right = in_pool(row, database, **options(server, tmp_path))
    assert (right["failed"], right["acc"], right["plan_by_endpoint"]) == (0, 1.0, 1.0)


def test_a_refused_key_is_raised_and_no_answer_scores_0_for_it(row, database, tmp_path):
    with serving(completion(PLAN), key=KEY) as server, pytest.raises(WrongConfiguration, match=API_KEY_VARIABLE):
        in_pool(row, database, **options(server, tmp_path))


@pytest.mark.parametrize("cache", ["memory://cache", "http://cache.example/c"])
def test_a_cache_that_is_no_store_is_raised_where_it_is_needed_alone(row, database, tmp_path, cache):
    with serving(completion(PLAN)) as server:
        given = options(server, tmp_path) | {"converter_cache": cache}
        assert score(row, as_report(WORLD, WORLD.plan()), database, **given)["acc"] == 1.0
        with pytest.raises(WrongConfiguration, match=f"reward.converter.cache = {cache}: .*give a folder or an s3://"):
            in_pool(row, database, **given)
    assert server.requests == []
