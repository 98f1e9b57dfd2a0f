"""The cluster as the tool reads it: API client, RayJobs, pods and why they wait, events, dry run."""
