"""The API server: requests, and a run's objects in KubeRay's, Kueue's and the scheduler's own words."""
