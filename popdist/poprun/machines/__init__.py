"""Facts about the machines that instances run on."""
