"""Generates what the charts take from `opd.spec`: values, their schema, READMEs and the library's constants."""
