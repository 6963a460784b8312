"""The frame of every page: one HTML document that needs nothing else, no network, no other file."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from bedl.report.text import data, text

__all__ = ["document"]


def document(title: str, about: str, main: str) -> str:
    """A whole page.

    Args:
        title: plain text.
        about: facts in the head of the page, HTML: ``<div><dt>…</dt><dd>…</dd></div>`` each.
        main: the content, HTML; the element with the id "content" is what a keyboard can skip to.
    """
    style, script = _asset("page.css"), _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # The page's own script and no other: even markup that slipped through could not run.
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title, 120)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the plots</a>
<header>
<h1>{data(title, 120)}</h1>
<button type="button" id="theme" hidden>Theme: auto</button>
<dl class="about">{about}</dl>
</header>
<main>
{main}
</main>
<footer>Made by bedl. This page is one file and loads nothing from elsewhere.</footer>
<div id="tip" hidden></div>
<div id="spoken" class="hidden" aria-live="polite"></div>
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return files("bedl.report").joinpath(name).read_text(encoding="utf-8")
