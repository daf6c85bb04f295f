# tests/turn.py — which share of many similar cases a run takes, for tests in Python: turn.h says how turns are chosen
import os

TURN = os.environ.get("ATTUNE_TURN", "0")


def in_turn(number, shares):
    return TURN == "all" or number % shares == int(TURN) % shares
