"""``python -m csd_lab.generate.reference`` writes the pages of docs/reference that are made from the code."""

from csd_lab.generate.reference.pages import FOLDER, pages
from host.cli.schemas import check_clone

check_clone(FOLDER)
FOLDER.mkdir(parents=True, exist_ok=True)
for name, text in pages().items():
    (FOLDER / name).write_text(text, encoding="utf-8")
