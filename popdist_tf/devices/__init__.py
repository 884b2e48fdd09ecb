"""The local devices that stand for a replica's IPUs."""
