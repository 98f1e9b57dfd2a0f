"""The command line as `python -m opdctl`."""

from opdctl.cli import main

if __name__ == "__main__":
    main()
