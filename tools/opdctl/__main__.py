"""The command line as `python -m opdctl`."""

from opdctl.cli import main

main()
