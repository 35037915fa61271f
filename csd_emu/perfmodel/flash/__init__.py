"""A drive's flash in device time: mapping, garbage collection and queues of dies and channels."""
