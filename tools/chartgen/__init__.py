"""Generates what the charts take from `opd.config`: values, their schema, READMEs and the library's constants."""
