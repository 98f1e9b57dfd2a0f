"""One command a file; heavy libraries are imported within the command, so that `--help` is quick."""
