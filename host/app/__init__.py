"""Work of the commands, without their options and tables: run, resume, bring up, calibrate, gate."""
