"""Attacks on bedl, in numbers: `make test-campaign`, or `python -m tools.campaign ATTACK … --tries 1000`.

One file is one attack. It says how often the whole campaign tries it (`TRIES`), how long one try may compute
(`SECONDS`), and what a try is: `attempt(number, folder)` does what the number stands for in an empty folder, returns in
a word what came of it, and raises `Fault` where something does not hold. The same number is the same try ever after. A
small part of each attack is in `make test` (tests/campaign).

Tries are made by processes of their own: one that crashes or hangs is a fault of its try, and the next one goes on.
Results are lines of JSON in a folder, so that a campaign can be stopped and taken up again.
"""
