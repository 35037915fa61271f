"""Runs a command, which is named by the arguments, under the core model: in a virtual machine, between two marks."""

import subprocess
import sys

from firmware_agent.common.frames.measure_frames import PhaseMark
from firmware_agent.cycle_marks import CycleMarks

marks = CycleMarks()
marks.execute(PhaseMark.START)
marks.execute(PhaseMark.IDLE)
try:
    code = subprocess.run(sys.argv[1:], check=False).returncode
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error.strerror}; name a program for 64-bit ARM Linux, behind its loader if it has one")
if code:
    sys.exit(f"{sys.argv[1]} ended with {code}")
marks.execute(PhaseMark.FORWARD)
marks.execute(PhaseMark.STOP)
