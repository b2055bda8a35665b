"""One file for each revision; the name says its number and subject."""
