"""Data preparation: the published raw files and the toy task, written in verl's parquet columns."""
