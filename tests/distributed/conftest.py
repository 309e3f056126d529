from tests.commands.conftest import weights

__all__ = ["weights"]
