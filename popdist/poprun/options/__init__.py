"""The options of poprun: one table, and what is made from it."""
