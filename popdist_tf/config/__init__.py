"""The configuration of the system: nested attributes, checked when they are set."""
