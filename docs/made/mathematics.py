"""Formulas as MathML, which browsers draw themselves: no script, nothing from elsewhere, at build time alone."""

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.writers.html5 import HTML5Translator

__all__ = ["block", "inline"]


def inline(writer: HTML5Translator, node: nodes.Element) -> None:
    """A formula in a line of text."""
    writer.body.append(latex2mathml.tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def block(writer: HTML5Translator, node: nodes.Element) -> None:
    """A formula of its own."""
    writer.body.append(f'<div class="math">{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode
