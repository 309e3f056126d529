"""The report of one registration: a single HTML file that opens offline (`page.py`) and says what it found in words."""
