"""The HTML report: curves, tables, conversations, sample answers."""
