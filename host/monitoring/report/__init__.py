"""report.html: what a run did, on one page that needs nothing else; see docs/report.md."""

import logging

# Of its fonts, of which only those that it brings are used here: nothing that a user could act on.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
