"""Which database the tests use."""

SEED = 7
NUM_CITIES = 30
