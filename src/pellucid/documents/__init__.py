"""A run, a count, a cell as data for people: each defined once, for every face."""
