"""A life, a cell, a structure as data, and as lines of a terminal. What is data knows nothing of how it is drawn."""
