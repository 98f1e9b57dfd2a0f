"""The project's tests; a package so that an installed module named `tests` cannot shadow it."""
