"""Tools for those who embed blocklife, and for its own tests: walks, explorations, devices and recordings that are checked."""
