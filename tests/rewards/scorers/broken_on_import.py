"""A reward module that cannot even be imported."""

raise RuntimeError("no licence")
