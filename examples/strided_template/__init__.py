"""A kernel template of one's own in one folder: maps by a grid that fits the device at once, whose threads go on in strides of the grid.

    python -m examples.strided_template

docs/adding_a_template.md explains it file by file.
"""
from examples.strided_template.record import Strided
from examples.strided_template.template import StridedTemplate

__all__ = ["Strided", "StridedTemplate"]
