"""The command line: the table of options and everything that is made from it."""
