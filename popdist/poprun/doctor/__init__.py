"""``poprun doctor``: checks everything that a job needs on this machine, and lists repairs.

Each module checks one subject and returns findings (`findings`); `session` orders the checks and
writes the report. The slowest check, a real job of two ranks, is the last.
"""
