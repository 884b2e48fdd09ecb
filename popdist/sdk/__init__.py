"""Programs written for the IPU SDK run without changing a line.

`finder` says which module of ours stands for which of the SDK's and serves them to ``import``;
`cli` (``popdist-sdk``, and ``python -m popdist.sdk`` for one program), `permanent` and `startup`
are the ways in; `surface` lists what each module publishes and how it fares on a host; `check`
looks programs up in the lists.
"""
