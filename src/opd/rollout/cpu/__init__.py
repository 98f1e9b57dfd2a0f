"""The CPU rollout server: a batching text generator whose answers do not depend on their batch mates.

Nothing here imports verl, so that the server's process starts without it; `opd.compat.cpu` connects the two.
"""
