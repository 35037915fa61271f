"""Tables that commands print for people."""
