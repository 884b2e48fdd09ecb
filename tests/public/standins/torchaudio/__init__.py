"""Takes the place of torchaudio, whose compiled part is for another PyTorch, where data is made."""
