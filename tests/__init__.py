"""The project's tests; a package, since verl installs one of this name, which would win over a folder that is none."""
