"""What can be wrong with a conversion."""

from __future__ import annotations


class ConvertError(ValueError):
    """A model cannot be expressed in the target's terms, or its files are not what they should be."""

    user_fault = True

    @classmethod
    def listing(cls, head: str, problems: list[str], advice: str = "") -> ConvertError:
        """One message with every problem on a line of its own, at most twenty."""
        more = [f"... and {len(problems) - 20} more"] if len(problems) > 20 else []
        lines = "".join(f"\n  - {problem}" for problem in problems[:20] + more)
        return cls(f"{head}:{lines}" + (f"\n{advice}" if advice else ""))
