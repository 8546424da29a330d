"""Source spans: where in the user's text or program something stands.

A span travels with tokens, nodes and errors so that a message can point at the user's thing.
"""
from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a named text. Units: `line` and `column` count from 1; 0 means unknown.

    `path`: the module or scope of the user's model that the place belongs to, as in "layers.0.linear1"; `operator`: what stands there, in
    the words of the model's own framework, as in "aten.gelu" or "BatchNormalization". Both "" where the model tells nothing.
    `line_text`: the line; where the text has none, the name of the place (an ONNX node's). `node`: the node of dynamo's graph behind it.
    """

    source: str
    line: int = 0
    column: int = 0
    line_text: str = ""
    path: str = ""
    operator: str = ""
    node: str = field(default="", compare=False)

    @property
    def place(self) -> str:
        """`file:line`, or the name of a place in a text without lines; "" for neither."""
        return f"{self.source}:{self.line}" if self.line else self.line_text

    def __str__(self) -> str:
        if not self.line:
            return self.source
        head = f"{self.source}:{self.line}:{self.column}"
        if not self.line_text:
            return head
        # Tabs stay tabs, so that the caret stands under its character however wide they are shown.
        before = "".join("\t" if c == "\t" else " " for c in self.line_text[:max(self.column - 1, 0)])
        return f"{head}\n  {self.line_text}\n  {before.ljust(self.column - 1)}^"
