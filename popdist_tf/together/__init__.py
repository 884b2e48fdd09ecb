"""What keeps the instances of a job together: in their steps, sessions, epochs and ends of data."""
