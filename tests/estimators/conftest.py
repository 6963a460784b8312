"""Which of scikit-learn's checks are left to the slow tests."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # the same check on the same data twice more, from memory-mapped arrays; 7 s each
        if "check_classifiers_train(readonly_memmap=True" in item.name:
            item.add_marker(pytest.mark.slow)
