import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from csd_emu.util.xml_elements import element

texts = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), max_size=12)


@given(text=texts, value=texts, inner=st.lists(texts, max_size=4))
def test_text_attributes_and_elements_come_back(text: str, value: str, inner: list[str]) -> None:
    made = element("outer", text, *(element("inner", each) for each in inner), tag=value)
    read = ElementTree.fromstring(ElementTree.tostring(made, encoding="unicode"))
    assert (read.tag, read.attrib, read.text or "") == ("outer", {"tag": value}, text)
    assert [(each.tag, each.text or "") for each in read] == [("inner", each) for each in inner]
