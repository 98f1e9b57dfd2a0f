"""The HTML report: curves, tables, texts, and pages of conversations and tokens."""
