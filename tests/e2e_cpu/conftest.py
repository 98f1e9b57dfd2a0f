import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "e2e_cpu" in item.path.parts:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(600))
