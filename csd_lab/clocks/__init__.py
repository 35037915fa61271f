"""One job on two clocks: counted, where virtual machines compute every step, and sampled, where they count some."""
