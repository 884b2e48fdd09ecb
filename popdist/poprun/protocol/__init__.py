"""The protocol between poprun and its guards: frames, argument lists, signals, locks."""
