import pytest
from tests.update.models import save_model


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> dict[str, str]:
    """A student and its teacher, of other sizes and untied heads; `wide` is a teacher with a tied head."""
    base = tmp_path_factory.mktemp("models")
    sizes = {
        "student": {"hidden": 32, "layers": 2, "rows": 64, "tied": False, "seed": 1},
        "teacher": {"hidden": 48, "layers": 3, "rows": 96, "tied": False, "seed": 2},
        "wide": {"hidden": 64, "layers": 1, "rows": 80, "tied": True, "seed": 3},
    }
    return {name: save_model(base / name, **size) for name, size in sizes.items()}
