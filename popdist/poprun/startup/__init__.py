"""Starts the interpreters of a job's programs, so that what they train can be told and recorded."""
