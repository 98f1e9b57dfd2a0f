"""Preconditions of a run, checked before it is submitted: cluster, namespace, objects, image reference and store."""
