"""Starts a job from Python: `popdist.run` calls a function on every instance of a new job.

Three processes take part, each with its own file: the calling process (`caller`), the launcher that
it starts (`launcher`, poprun with a thread for its caller), and each instance (`instance`). The
function and the answers are pickles (`pickles`), sent over an authenticated connection
(`messages`).
"""
