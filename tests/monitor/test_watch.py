"""The monitor next to the trainer: a failure in it stays in it."""

import logging
from types import SimpleNamespace

from opd.monitor.faults import Fault
from opd.monitor.monitor import Monitor
from opd.trainer.run_log import StepLogger

ROW = {"training/global_step": 1, "opd/loss": 2.0}


def test_a_rule_that_raises_is_said_once_and_the_row_is_logged(caplog, capsys):
    asked, logged = [], []

    def judge(row, past):
        asked.append(row)
        raise ZeroDivisionError

    run = SimpleNamespace(log=lambda step, data: logged.append((step, data)))
    watch = Monitor([], [Fault(name="a", what="a", look="a", judge=judge)])
    logger = StepLogger(run, SimpleNamespace(log=lambda data, step: None), total_steps=3, watch=watch.see)
    with caplog.at_level(logging.WARNING, "opd.monitor.monitor"):
        for step in (1, 2, 3):
            logger.log(ROW | {"training/global_step": step}, step)
    logger.log(ROW | {"opd/policy_loss": 0.0, "opd/loss": -1e-9, "opd/grad_norm": 1.5}, 3)
    said = capsys.readouterr().out.splitlines()
    assert "loss 2.0000" in said[0]
    assert said[3].startswith("step 3/3  grad 1.500"), "a policy loss is 0, and says nothing"
    assert len(asked) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the monitor of silent faults failed: it reports none from step 1 on"
    ]
    assert [(step, data["opd/loss"]) for step, data in logged[:3]] == [(1, 2.0), (2, 2.0), (3, 2.0)]
