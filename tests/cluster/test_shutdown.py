"""A run that is asked to end hears it between steps, whatever its main thread does at that moment."""

import io
import os
import signal
import sys

from opd.cluster.shutdown import GracefulStop

SAID = "asked to end: finishing this step, then saving\n"


class Signalling(io.RawIOBase):
    """A stream below `print` in whose first write the process is asked to end."""

    asked = False

    def writable(self):
        return True

    def write(self, data):
        if not self.asked:
            self.asked = True
            os.kill(os.getpid(), signal.SIGTERM)
        return len(data)


def test_a_request_within_a_print_is_taken_and_the_print_goes_on(monkeypatch, capfd):
    with GracefulStop() as stop:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Signalling())))
        print("step 1", flush=True)
        monkeypatch.undo()
    assert stop.requested
    assert capfd.readouterr().out == SAID


def test_a_second_request_acts_as_it_would_have_before():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with GracefulStop() as stop:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            assert stop.requested
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_without_a_request_nothing_is_said_and_the_handler_is_given_back(capfd):
    before = signal.getsignal(signal.SIGTERM)
    with GracefulStop() as stop:
        assert signal.getsignal(signal.SIGTERM) != before
    assert not stop.requested
    assert signal.getsignal(signal.SIGTERM) == before
    assert capfd.readouterr().out == ""
