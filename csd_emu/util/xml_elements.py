"""XML documents as nested calls, written as they read."""

from __future__ import annotations

from xml.etree.ElementTree import Element


def element(tag: str, /, *inside: Element | str, **attributes: str) -> Element:
    """Return an element.

    Args:
        tag: its name; that of a namespace as ``{namespace}name``.
        inside: its text and the elements in it; text stands before them, whatever the order.
        attributes: by name.
    """
    made = Element(tag, attributes)
    made.text = "".join(each for each in inside if isinstance(each, str))
    made.extend(each for each in inside if not isinstance(each, str))
    return made
