"""The travel environment: a generated world in a database, tools over it, planning tasks, and the reward of an answer.

`data` writes its tasks as rows for training; `toy` holds tiny models and tasks that a laptop trains on.
"""
