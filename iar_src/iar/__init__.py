"""Inject, Align, Recover: put a set of documents into a language model and keep its general ability."""

__version__ = "0.1.0"
