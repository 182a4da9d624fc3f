"""Published training speeds; bench/published_speeds.py replays them by vlmtrain's cost model."""
