"""Ways through a world: all of them, long ones at random, and the story of one that ends badly."""
