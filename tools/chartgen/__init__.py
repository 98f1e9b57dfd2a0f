"""Generator of the charts' values and their schema from `opd.experiment`."""
