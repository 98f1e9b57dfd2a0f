"""What runs in a run's pods beside the trainer: start, stop, submit, follow the log, fetch. Read by charts/opd-lib."""
