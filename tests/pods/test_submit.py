"""The submitter follows a job to its end through lost streams and lost heads, and prints every line once."""

import asyncio
import io

import aiohttp
import pytest

from opd.pods.submit import Submitter, run

LOG = "line 1\nline 2\nline 3\n"


class Cluster:
    """Ray's job server as a script: each call of `tail_job_logs` plays the next stream.

    Args:
        streams: what each stream yields; an exception ends it as a broken connection would, a number is silence in seconds.
        statuses: what each look at the job finds; the last one stays. None means no such job.
    """

    def __init__(self, streams, statuses):
        self.streams, self.statuses, self.submitted = list(streams), list(statuses), []

    def get_job_status(self, job_id):
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status is None:
            raise RuntimeError(f"Request failed with status code 404: Job {job_id} does not exist.")
        if isinstance(status, Exception):
            raise status
        return status

    def submit_job(self, *, entrypoint, submission_id):
        self.submitted.append((submission_id, entrypoint))

    async def tail_job_logs(self, job_id):
        for part in self.streams.pop(0) if self.streams else [LOG]:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, int):
                await asyncio.sleep(part)
            yield part


def follow(cluster, **options):
    out = io.StringIO()
    code = run(Submitter(lambda: cluster, "job-1", "python -m x", out), interval_s=0, **options)
    return code, out.getvalue()


def test_a_job_is_submitted_once_and_followed_to_its_end():
    cluster = Cluster([["line 1\nline 2\n", "line 3\n"]], [None, "RUNNING", "SUCCEEDED"])
    assert follow(cluster) == (0, LOG)
    assert cluster.submitted == [("job-1", "python -m x")]


@pytest.mark.parametrize("end", [[], [aiohttp.ClientConnectionError("reset")], [RuntimeError("closed with 1006")]])
def test_a_stream_that_breaks_off_is_opened_again_at_the_same_place(end):
    streams = [["line 1\n", "li", *end], ["line 1\nline 2\n", *end], [LOG]]
    assert follow(Cluster(streams, ["RUNNING", "RUNNING", "FAILED"])) == (0, LOG)


def test_a_job_of_a_lost_head_is_submitted_again_and_printed_from_its_start():
    streams = [["attempt 1\n"], ["attempt 2\n", "done\n"], ["attempt 2\ndone\n"]]
    cluster = Cluster(streams, ["RUNNING", ConnectionError("no head"), None, "RUNNING", "SUCCEEDED"])
    assert follow(cluster) == (0, "attempt 1\nattempt 2\ndone\n")
    assert len(cluster.submitted) == 1


def test_a_silent_stream_is_left_to_look_at_the_job():
    out = io.StringIO()
    cluster = Cluster([["line 1\n", 600]], ["RUNNING"])
    assert Submitter(lambda: cluster, "job-1", "x", out).step(silence_s=0.1) == "RUNNING"
    assert out.getvalue() == "line 1\n"


def test_an_unreachable_ray_ends_in_an_error_that_lets_kubernetes_try_another_pod():
    def connect():
        raise ConnectionError("refused")

    assert run(Submitter(connect, "job-1", "x", io.StringIO()), patience_s=0.05, interval_s=0.01) == 1
