"""A run that is asked to end hears it between steps, also within a print."""

import io
import os
import signal
import sys

from opd.cluster.shutdown import GracefulStop


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


def test_a_request_within_a_print_is_taken_and_a_second_one_acts_as_before(monkeypatch, capfd):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with GracefulStop() as stop:
            assert not stop.requested
            monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Signalling())))
            print("step 1", flush=True)
            monkeypatch.undo()
            assert (stop.requested, heard) == (True, [])
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        assert capfd.readouterr().out == "asked to end: finishing this step, then saving\n"
    finally:
        signal.signal(signal.SIGTERM, before)
