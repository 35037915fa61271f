"""What is believed of devices and links after trials."""
