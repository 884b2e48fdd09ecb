"""The configuration of the system: `IPUConfig`, and the option functions of SDK 2.2 and before."""
