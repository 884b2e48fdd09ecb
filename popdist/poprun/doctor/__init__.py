"""``poprun doctor``: looks at everything a job needs on this machine, and says what to repair.

Each module looks at one subject and answers with findings (`findings`); `session` puts them in
order, `report` writes them down. What takes long, a real job of two ranks, comes last.
"""
