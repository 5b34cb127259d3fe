"""One parser under atheris, until the time is over or it breaks: not called by hand."""

import sys

import atheris

# Their branches guide the search; what they import of others is only called.
GUIDING = ["mlnt", "pickletools", "zipfile", "tarfile", "gzip", "json", "csv", "PIL"]

with atheris.instrument_imports(include=GUIDING):
    from .parsers import PARSERS


def main() -> None:
    parser = PARSERS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, parser)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
