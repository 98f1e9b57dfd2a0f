"""Programs in a run's pods next to the trainer: start, stop, submit, follow the log, stage. charts/opd-lib starts them."""
