"""One command a file; what is heavy is imported inside the command, so that `--help` stays quick."""
