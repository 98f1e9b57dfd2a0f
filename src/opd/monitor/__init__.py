"""Faults that a run survives without an error, told from its rows of metrics: what, since which step, where to look.

`opd.monitor.faults` has the faults with their limits and the reason of each; `opd.monitor.monitor` goes through the rows;
`opd.monitor.preflight` makes a table of what the first one shows of the teacher.
"""
