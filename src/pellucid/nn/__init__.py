"""The parts of a block: plain modules, forward(x, step), each weight's axes in a class table."""
