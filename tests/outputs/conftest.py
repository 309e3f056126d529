from tests.commands.conftest import pair, weights  # noqa: F401 - fixtures
