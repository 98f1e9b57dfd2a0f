"""Property tests here repeat the same examples on every run and have no time limit of their own: no flakes."""

from hypothesis import settings

settings.register_profile("opd", deadline=None, derandomize=True)
settings.load_profile("opd")
