"""What proves blocklife and is not shipped with it: mutants, another judge of the tables, drivers of real engines."""
