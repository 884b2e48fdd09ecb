"""What people and programs see of a job: tables, reports, result files, timelines."""
