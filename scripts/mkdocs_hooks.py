"""A hook of mkdocs for docstrings in TRL's style: [`~trl.GRPOTrainer`], and types between backticks."""

import re
from typing import Any


def on_page_content(html: str, **kwargs: Any) -> str:
    """Takes the brackets, the tilde and the backticks off: all become plain code."""
    html = re.sub(r"\[<code>~?([\w.]+)</code>\](?!\()", r"<code>\1</code>", html)
    return re.sub(r"<code>`([^`<]+)`</code>", r"<code>\1</code>", html)
