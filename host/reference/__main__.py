"""``python -m host.reference`` writes docs/reference/cli.md, array-file.md and job-file.md."""

from host.reference.pages import FOLDER, pages
from host.schemas import check_clone

check_clone(FOLDER)
FOLDER.mkdir(parents=True, exist_ok=True)
for name, text in pages().items():
    (FOLDER / name).write_text(text, encoding="utf-8")
