"""The tool's side of Kubernetes: reading a run's objects as pure functions, and the few calls that change them."""
