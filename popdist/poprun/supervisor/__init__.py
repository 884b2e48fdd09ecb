"""What runs in poprun while the job lives: relays output, detects failures, ends the job."""
