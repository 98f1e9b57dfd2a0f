"""The run directory: attempts, metrics, logs, verified checkpoints and results, on local disk and in an object store."""
