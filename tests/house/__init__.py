"""Tests of the repository itself: its files, its commands, its set-up."""
