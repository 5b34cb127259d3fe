"""Coverage-guided fuzzing of everything that reads a file: `python -m tests.fuzz PARSER`.

parsers.py   each parser as a function of bytes, and small files to begin with
target.py    one parser under atheris, in a process of its own
__main__.py  the command; writes what was run into record.jsonl
findings/    inputs that once broke a parser, by its name; tests/test_fuzz.py tries them every time
"""
