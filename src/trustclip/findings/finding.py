"""What a finding is: one entry of the one list that every rendering shows."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "note", "warning", "fault"]


@dataclass(frozen=True)
class Finding:
    """One statement about a run, or about several.

    `trustclip explain`, the page, `trustclip compare` and the terminal of a training show the same
    findings in the same words; what they add is where a finding stands.

    Args:
      kind: subject and name, ``"gate/never"``; the subject is that of the part of the page that
        shows it.
      severity: ``"ok"`` (as it should be), ``"note"`` (a fact), ``"warning"`` (it limits what the
        run can show, or wastes some of it) or ``"fault"`` (what the run was for did not happen).
      sentence: what was seen, in one or two sentences.
      advice: what to do about it, an imperative in small letters; empty if nothing.
      step: update at which it was said; None where that is the end.

    Example:
      >>> finding = Finding("gate/never", "fault", "The gate never closed.")
      >>> finding.subject, finding.line, finding.advice
      ('gate', 'The gate never closed.', '')
    """

    kind: str
    severity: Severity
    sentence: str
    advice: str = ""
    step: int | None = None

    @property
    def subject(self) -> str:
        """The part of `kind` before the slash."""
        return self.kind.partition("/")[0]

    @property
    def name(self) -> str:
        """The part of `kind` after the slash, in words."""
        return self.kind.partition("/")[2].replace("_", " ")

    @property
    def troubles(self) -> bool:
        """Whether it is a warning or a fault."""
        return self.severity in ("warning", "fault")

    @property
    def line(self) -> str:
        """The sentence, and when it was said where that is not the end."""
        if self.step is None:
            return self.sentence
        if self.subject == "start":
            return f"At the start: {self.sentence}"
        return f"Warning at update {self.step}: {self.sentence}"

    @property
    def text(self) -> str:
        """Sentence and advice in one, where there is no second line for the advice.

        Example:
          >>> Finding("start/cut_off", "fault", "All answers are cut off.", "raise it.").text
          'All answers are cut off. Raise it.'
        """
        return f"{self.sentence} {self.advice[:1].upper()}{self.advice[1:]}".rstrip()
