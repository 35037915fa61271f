"""How QEMU virtual machines become drives: domain XML, monitor, libvirt's daemon, template and clones."""
