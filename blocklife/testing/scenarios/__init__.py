"""Cases written down step by step in TOML, and what an engine needs so that they run against it."""
