"""Documents as lines of a terminal and as SVG pictures: runs, cells, structures, counts, benches."""
