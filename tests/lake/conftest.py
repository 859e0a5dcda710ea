from tests.orchestration.conftest import lake as lake
