"""From an experiment file to a rendered chart: values, sweeps and their expressions, and the call of Helm.

What prepares or makes manifests belongs here.
"""
