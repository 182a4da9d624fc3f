"""Published training speeds; bench/published_speeds.py compares them with vlmtrain's cost model."""
