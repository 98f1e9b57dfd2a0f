"""A page of the conversations that a run kept (torch-free)."""
