"""Generates what the charts take from `opd.config`: values, their schema, and the library's constants and rules."""
