"""One page about a run: ``python -m popdist.report RUN_FOLDER [-o FILE]``.

`run_reader` reads the files of poprun and the instances; every file may be missing. `figures`
computes the page's values. `drawing` makes SVG pictures, and `page` builds one HTML file that loads
no other file.
"""
