"""The output of a job for people and programs: tables, reports, result files, timelines."""
