"""The HTML report: curves, tables, sample answers, and pages of conversations."""
