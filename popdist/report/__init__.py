"""One page about a run: ``python -m popdist.report RUN_FOLDER [-o FILE]``.

`reading` takes in what poprun and the instances have left, however little; `figures` works out what
a page shows; `drawing` makes pictures (SVG) of it and `page` puts all of it into one HTML file that
needs nothing from anywhere else.
"""
