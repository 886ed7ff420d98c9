from tests.integration.stages.conftest import fleet

__all__ = ["fleet"]
