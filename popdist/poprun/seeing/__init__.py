"""What people are shown of a job: the topology and the failures."""
