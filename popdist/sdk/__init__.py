"""Programs written for the IPU SDK run without changing a line.

`names` says which module of ours stands for which of the SDK's, `finder` serves them to ``import``,
`surface` lists what each publishes and how it fares on a host, and `cli` is ``popdist-sdk``.
"""
