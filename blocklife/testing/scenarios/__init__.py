"""Cases written down step by step in TOML, and what an engine needs so that they run against it."""

OUR_DRIVER = "blocklife.testing:OurDriver"
"""The engine that scenarios run against where no other is named."""
