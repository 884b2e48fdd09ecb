"""The part of poprun that runs during the job: relays output, detects failures, ends the job."""
