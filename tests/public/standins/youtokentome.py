"""In place of youtokentome, which has no wheel and whose tokenizer no run uses."""
