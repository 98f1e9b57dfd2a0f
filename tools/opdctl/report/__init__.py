"""The HTML report: its page, curves and conversations."""
