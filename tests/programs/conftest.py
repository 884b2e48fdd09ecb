import pytest

from tests.programs.launching import enabled_environment


@pytest.fixture(scope="session")
def enabled(tmp_path_factory):
    """Folder of programs of an environment after `popdist-sdk enable`."""
    return enabled_environment(tmp_path_factory.mktemp("environment"))
