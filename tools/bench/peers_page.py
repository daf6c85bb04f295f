# tools/bench/peers_page.py — results of peers: floors, and a page with a table of ratios
import argparse
from dataclasses import dataclass
from typing import Callable

import results


@dataclass(frozen=True)
class Look:
    """How the pages for one kind of machine look. Cases are dicts, as in the JSON."""

    name: str  # base name of the files
    heading: str
    peers: dict  # attune is compared with: names, by their keys in the JSON
    unit: str
    scale: float  # 1e9 of the work a second per unit
    words_help: str
    group: Callable  # case to the title of its panel
    label: Callable  # case to its row's label in the group
    words: Callable  # case to the words that floors can use
    of_run: Callable  # a run and its cases to facts, as texts
    notes: Callable  # all data to how it was measured
    peak: bool = False  # whether there is a peak to compare with

    @property
    def against(self):
        return {**self.peers, **({"peak": "peak"} if self.peak else {})}

    @property
    def names(self):
        return {"attune": "attune", **self.against}

    def title(self, case):
        return f"{self.group(case)}: {self.label(case)}"

    def rate(self, giga):
        return float(results.text_of(giga / self.scale))


def ratios(case):
    """attune's median rate divided by each peer's, and by the peak if that is known."""
    measured = case["measured"]
    if "attune" not in measured:
        return {}
    mine = measured["attune"]["rate"]["median"]
    out = {name: mine / one["rate"]["median"] for name, one in measured.items() if name != "attune"}
    peak = measured["attune"].get("peak_gflops")
    return {**out, **({"peak": mine / peak} if peak else {})}


def floor(look):
    """f32:causal:sdpa=1.0 as ({"f32", "causal"}, "sdpa", 1.0)"""
    def read(text):
        *which, against = text.partition("=")[0].split(":")
        try:
            least = float(text.partition("=")[2])
        except ValueError:
            least = 0.0
        if against not in look.against or least <= 0:
            raise argparse.ArgumentTypeError(
                f"`{text}` is not [WORD:...]PEER=RATIO with a peer of {', '.join(look.against)}")
        return set(which), against, least
    return read


def verdicts(look, case, floors):
    """(against, least, whether it is met) for each floor that applies to this case. A failed measurement meets none."""
    found, there = ratios(case), {"peak", *case["measured"], *case["failed"]}
    return [(against, least, found.get(against, 0.0) >= least) for which, against, least in floors
            if which <= look.words(case) and against in there]


def missed(look, data, floors):
    out = []
    for which, against, least in floors:
        if not any(verdicts(look, case, [(which, against, least)]) for case in data["cases"]):
            out.append(f"the floor {':'.join([*sorted(which), against])}={least:g} fits nothing that was measured")
    for case in data["cases"]:
        for against, least, met in verdicts(look, case, floors):
            if not met:
                found = ratios(case).get(against)
                out.append(f"{look.title(case)}: {'nothing' if found is None else f'{found:.3f}'} of "
                           f"{look.names[against]}, floor {least:g}")
    return out


def result(look, data):
    """The part of all data that is stored: the run, and its rows."""
    runs = [{"date": run["date"], "command": run["command"],
             "facts": look.of_run(run, [case for case in data["cases"] if case["run"] == number]) + [
                 "load " + " to ".join(f"{run[when][0]:.2f}" for when in ("load_at_start", "load_at_end") if when in run)]}
            for number, run in enumerate(data["runs"])]
    rows = []
    for case in data["cases"]:
        rates = {look.names[name]: {of: look.rate(one["rate"][of]) for of in ("median", "best")}
                 for name, one in case["measured"].items()}
        rates |= {look.names[name]: "failed" for name in case["failed"]}
        rows.append(results.Row(look.group(case), look.label(case), rates,
                                {look.names[name]: round(found, 4) for name, found in ratios(case).items()}))
    return {"heading": look.heading, "unit": look.unit, "peers": list(look.peers.values()), "peak": look.peak,
            "runs": runs}, rows


def page(look, data, floors):
    run, rows = result(look, data)
    out = f"# {look.heading}\n\n"
    for one in run["runs"]:
        out += f"- {'; '.join([one['date'], *one['facts']])}: `{one['command']}`\n"
    met = ["; ".join(f"{least:g} of {look.names[against]}: {'met' if met else 'missed'}"
                     for against, least, met in verdicts(look, case, floors)) or "—"
           for case in data["cases"]] if floors else []
    out += (f"\n{look.notes(data)}\n\n<!-- results: {look.name}.jsonl -->\n{results.table(run, rows, met)}"
            "<!-- /results -->\n")
    failures = [f"- {look.title(case)}: {look.names[name]} failed: {' '.join(why.split())}"
                for case in data["cases"] for name, why in case["failed"].items()]
    failures += [f"- {case}: left out, for the limit of time" for case in data["left_out"]]
    failures += [f"- skipped: {case}" for case in data.get("skipped", [])]
    out += "\n" + "\n".join(failures) + "\n" if failures else ""
    where = "; ".join(sorted({f"{run['machine']}, {run['date'][:10]}" for run in data["runs"]}))
    return out + f"\n![{look.heading}: {look.unit}; {where}]({look.name}.svg)\n"
