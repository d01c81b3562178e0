"""The traceback of an error in a notebook, with the explanation of its logs."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from meshlab.base._errors import MeshlabError, brief_explanation, page_note


def explained_traceback(error: MeshlabError) -> list[str]:
    """Return the traceback that IPython prints for other errors, the brief explanation, and the page to read."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    lines: list[str] = (
        traceback.format_exception(error)
        if shell is None
        else shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__)
    )
    return [*lines, *filter(None, (brief_explanation(error), page_note(error)))]
