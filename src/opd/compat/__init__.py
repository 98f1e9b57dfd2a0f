"""Changes to other libraries: every name of verl, Ray, torch or vLLM that this project replaces at run time.

Each patch names the version it was written for, and has a test that fails once the library no longer needs it.
"""
