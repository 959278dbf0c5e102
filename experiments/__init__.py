"""Our studies, beside the library: one folder each, with a plan of runs, and what makes tables and figures of them.

`python -m experiments NAME` runs one of them from the root of the repository; the library never imports this package.
"""
