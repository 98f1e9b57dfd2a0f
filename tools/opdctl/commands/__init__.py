"""One command a file, named in `GROUPS` of `cli.py`; heavy libraries are imported within the command, so that `--help` is quick."""
