"""The submitter: `python -m opd.pods.submit -- COMMAND ...` submits the Ray job and prints its log to the end.

A broken log stream is opened again at the same place, and a job that a new head lacks is submitted again. KubeRay reads
the job's result itself: the exit code only says that this program did its part, so a failed job is 0 here.
"""

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

ADDRESS_VARIABLE = "RAY_DASHBOARD_ADDRESS"  # KubeRay sets both
SUBMISSION_VARIABLE = "RAY_JOB_SUBMISSION_ID"
PATIENCE_S = 900.0
RETRY_INTERVAL_S = 2.0
# A head that vanished with its node leaves a connection that never ends: after this silence the job is looked at.
SILENCE_S = 300.0
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Submitter:
    """One submission, followed to its end.

    Args:
        connect: makes Ray's JobSubmissionClient; tried again until Ray answers.
        out: gets the job's log, each part once.
    """

    def __init__(self, connect: Callable[[], Any], submission_id: str, entrypoint: str, out: TextIO) -> None:
        self.connect, self.submission_id, self.entrypoint, self.out = connect, submission_id, entrypoint, out
        self.jobs: Any = None
        self.num_printed = 0

    def step(self, *, silence_s: float = SILENCE_S) -> str:
        """Submit a missing job, else print its log as far as it goes; return the job's status before that.

        Raises:
            RuntimeError, OSError: Ray is unreachable; try again.
        """
        self.jobs = self.jobs or self.connect()
        try:
            status = self.jobs.get_job_status(self.submission_id)
        except RuntimeError as error:
            if "does not exist" not in str(error):
                raise
            self.num_printed = 0
            self.jobs.submit_job(entrypoint=self.entrypoint, submission_id=self.submission_id)
            return "PENDING"
        asyncio.run(self._print(silence_s))
        return str(getattr(status, "value", status))

    async def _print(self, silence_s: float) -> None:
        """Print the stream, which starts at the log's beginning, from the end of the printed part."""
        import aiohttp

        seen = 0
        stream = self.jobs.tail_job_logs(self.submission_id)
        try:
            while True:
                text = await asyncio.wait_for(anext(stream), silence_s)
                fresh = text[max(self.num_printed - seen, 0) :]
                seen += len(text)
                self.num_printed += len(fresh)
                print(fresh, end="", file=self.out, flush=True)
        except (StopAsyncIteration, TimeoutError):
            return
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error)) from error
        finally:
            await stream.aclose()


def run(submitter: Submitter, *, patience_s: float = PATIENCE_S, interval_s: float = RETRY_INTERVAL_S) -> int:
    """Follow the job to its end; return 1 if Ray was unreachable for `patience_s`."""
    last_contact_s, status, told = time.monotonic(), "", ""
    while status not in ENDED:
        try:
            status, told = submitter.step(), ""
            last_contact_s = time.monotonic()
        except (RuntimeError, OSError) as error:
            if (name := type(error).__name__) != told:
                _say(f"{name}: {error}")
            told = name
            if time.monotonic() - last_contact_s > patience_s:
                _say(f"Ray was out of reach for {patience_s:g} s: giving up")
                return 1
        time.sleep(interval_s * (status not in ENDED))
    _say(f"job {submitter.submission_id}: {status}")
    return 0


def main(words: Sequence[str]) -> int:
    """Submit the command after `--`; return the exit code."""
    from ray.job_submission import JobSubmissionClient

    address = os.environ[ADDRESS_VARIABLE]
    url, entrypoint = address if "://" in address else f"http://{address}", shlex.join(words[words.index("--") + 1 :])
    return run(Submitter(lambda: JobSubmissionClient(url), os.environ[SUBMISSION_VARIABLE], entrypoint, sys.stdout))


def _say(text: str) -> None:
    print(f"opd.pods.submit: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
