"""Programs written for the IPU SDK run without changing a line.

`finder` maps the SDK's module names to popdist's modules and serves them to ``import``. `cli`
(``popdist-sdk``, and ``python -m popdist.sdk`` for one program), `permanent` and `startup` enable
the names. `surface` lists the published names of each module and their support on a host. `check`
looks the names of programs up in these lists.
"""
