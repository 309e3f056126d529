from tests.workflows.conftest import weights

__all__ = ["weights"]
