"""Will this run start, and if not, why: checks of objects, placement, shares, queues and the way to the store.

What judges a cluster before a run is submitted belongs here; it reads through `opdctl.kube`.
"""
