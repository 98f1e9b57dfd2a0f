"""What the tool reads of a cluster: the API client, run objects, pods and why they wait, events, logs, the dashboard.

What speaks to the API server or explains its answers belongs here.
"""
