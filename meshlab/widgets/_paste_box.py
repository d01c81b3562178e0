"""PasteBox: a field for a log or any other text, and its explanation below."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from meshlab.base._errors import MeshlabError
from meshlab.base._markup import escape
from meshlab.diagnosis._explain import explain
from meshlab.diagnosis._explanation import Explanation
from meshlab.widgets._assets import script, style, with_fallback


class PasteBox(anywidget.AnyWidget):
    """A field into which a person pastes a log or any other text, with a button that explains it.

    The explanation appears below: the causes, the fixes, and the lines that show them. Ctrl+Enter is the same as the
    button. A button copies the explanation as Markdown, for an issue. The name of a file is also accepted.

    Parameters
    ----------
    text : str, default ""
        The initial text.

    Attributes
    ----------
    text : str
        The text that was explained last. A new one is explained immediately.

    Examples
    --------
    >>> import meshlab as ml
    >>> box = ml.widgets.PasteBox()
    >>> box.text = "DeviceMesh((dp=2, tp=4), device: 'cuda', stride: (4, 1))"
    >>> box.explanation.mesh, box.problem
    (DeviceMesh('dp=2, tp=4'), '')
    >>> box.text = "hello"
    >>> box.explanation is None, box.problem[:22]
    (True, 'nothing was recognised')
    """

    _bundle = "paste_box"
    _esm = script(_bundle)
    _css = style(_bundle)

    text = traitlets.Unicode("").tag(sync=True)
    _shown = traitlets.Dict().tag(sync=True)

    def __init__(self, text: str = "") -> None:
        self._explanation: Explanation | None = None
        super().__init__(text=text)
        self._explain()
        self.observe(self._explain, names="text")

    @property
    def explanation(self) -> Explanation | None:
        """The explanation of the text. None if it is empty or nothing in it was recognised."""
        return self._explanation

    @property
    def problem(self) -> str:
        """The reason why the text was not explained, or an empty string."""
        return str(self._shown["problem"])

    def _explain(self, change: Any = None) -> None:
        explanation, problem = None, ""
        if self.text.strip():
            try:
                explanation = explain(self.text)
            except MeshlabError as error:
                problem = error.summary
            except OSError as error:  # the text is the name of a file
                problem = f"cannot read {self.text[:80]!r}: {error.strerror or error}"
        self._explanation = explanation
        self._shown = {
            "verdict": "" if explanation is None else explanation.verdict,
            "html": "" if explanation is None else explanation._repr_html_(),
            "markdown": "" if explanation is None else explanation.to_markdown(),
            "problem": problem,
            # Different for each text, because the front end waits for a change.
            "number": self._shown.get("number", 0) + 1,
        }

    def __repr__(self) -> str:
        return f"PasteBox({'empty' if not self.text.strip() else repr(self._explanation)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_fallback(super()._repr_mimebundle_(**kwargs), self._fallback)

    def _fallback(self) -> dict[str, str]:
        problem = self.problem or "Paste a text, and press Explain. This needs a running kernel."
        html = f"<p>{escape(problem)}</p>" if self._explanation is None else self._explanation._repr_html_()
        return {"text/html": html}
