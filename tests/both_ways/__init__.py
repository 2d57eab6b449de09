"""One source, two speeds: random walks leave the same trace behind, interpreted and compiled."""
