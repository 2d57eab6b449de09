"""How fast pages move between a GPU and the host, as shares of what the link gives in the same run.

Rules: a figure is a median of several repetitions, with the slowest and the quickest beside it; competitors take turns in an
order that rotates; every competitor's bytes are compared before its time is taken, and whoever moves wrong bytes has no time;
targets are printed beside the figures, met or missed, and fail nobody. All of it runs on CPU tensors, too, in a size for tests.
"""
