"""The options of poprun: one table, and the parser, help, files and records made from it."""
