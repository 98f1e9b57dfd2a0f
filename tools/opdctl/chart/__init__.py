"""From an experiment file to a rendered chart: values, sweeps, Helm."""
