"""A run's kept conversations as one self-contained HTML page (torch-free)."""
