"""One rank of the trainer: what runs in Ray's worker processes on the accelerator, and how the driver saves and resumes it."""
