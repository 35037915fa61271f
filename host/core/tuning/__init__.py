"""What batch tuners of every kind share: their protocol, and the tables that they decide from."""
