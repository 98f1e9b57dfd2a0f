"""The machines under a run: its Ray nodes, places on them, lost parts, stalls, and an orderly end.

What reacts to nodes, processes and signals belongs here; the programs that the chart starts in pods are in `opd.pods`.
"""
