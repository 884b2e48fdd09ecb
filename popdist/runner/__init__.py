"""Starts a job from Python: `popdist.run` calls a function on every instance of a new job.

Three places take part, each with a file of its own: the process that calls (`caller`), the launcher
that it starts (`launcher`, which is poprun with a thread to its caller), and each instance
(`instance`). Function and answers travel as pickles (`pickles`) over a connection that nobody else
can use (`messages`).
"""
