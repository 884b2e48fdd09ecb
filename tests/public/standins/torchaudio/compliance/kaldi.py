"""Takes the place of torchaudio's module of the same name."""
