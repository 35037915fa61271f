"""The job file's `tuner`: a built-in name, or a mapping with the name of one, or of one's own, and its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from host.config.plugins.kinds import TUNER
from host.config.plugins.plugin_section import BuiltInSection, RegisteredSection, UserSection

if TYPE_CHECKING:
    TunerSection = str | BuiltInSection | UserSection
else:
    TunerSection = Annotated[
        Any,
        RegisteredSection(
            TUNER,
            BuiltInSection,
            "stannis or {name: my_tuner.py:MyTuner}",
            "the rules of tuners are keys of sync.tuning",
        ),
    ]
