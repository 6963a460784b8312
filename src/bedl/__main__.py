"""`python -m bedl`: the command line."""

from bedl.cli import main

if __name__ == "__main__":
    main()
