"""The arithmetic: one algorithm a file, arrays in, the change of the parameter and the new slots out."""
