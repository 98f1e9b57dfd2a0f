"""The machines under a run: its Ray nodes, places on them, lost parts, stalls, and an orderly end."""
