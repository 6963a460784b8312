"""A plugin of pytest, `-p tests.no_skips`: a test that is skipped has not checked anything, and the run fails."""

from __future__ import annotations

import pytest


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = [report for report in reporter.stats.get("skipped", []) if "doctest" not in str(report.longrepr)]
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
