"""The worker beside each server's host process: it meets the other servers' workers and adds up sums with them."""
