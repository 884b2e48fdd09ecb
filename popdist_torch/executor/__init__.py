"""Running models: whole combined batches, replica by replica, instance by instance."""
