"""QEMU virtual machines as drives: domain XML, monitor, libvirt's daemon, template and clones."""
