"""One run, judged: checks, events and a verdict with its reasons."""
