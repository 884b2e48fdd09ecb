"""Starting, watching and ending a job, with a guard beside every instance."""
