"""What poprun and its guards must agree on: frames, argument lists, heartbeats, locks."""
