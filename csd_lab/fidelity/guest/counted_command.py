"""Runs a command, which is named by the arguments, under the core model: in a virtual machine, between two marks."""

import subprocess
import sys

from firmware_agent.common.frames.measure_frames import PhaseMark
from firmware_agent.cycle_marks import CycleMarks

marks = CycleMarks()
marks.execute(PhaseMark.START)
marks.execute(PhaseMark.IDLE)
subprocess.run(sys.argv[1:], check=True)
marks.execute(PhaseMark.FORWARD)
marks.execute(PhaseMark.STOP)
