"""Owns what the charts take from `opd.spec`: values.yaml, values.schema.json, README.md and the library's constants."""
