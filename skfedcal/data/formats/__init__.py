"""Kinds of files that hold logits, labels and clients, each read into named arrays."""
