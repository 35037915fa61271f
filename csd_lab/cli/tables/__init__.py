"""What the commands of csd_lab print for people."""
